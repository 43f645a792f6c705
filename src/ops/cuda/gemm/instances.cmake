# instances.cmake -- one source per packed format and kernel family, so that nvcc compiles them side by side.
# Sets gemm_instances to the files, written into the build folder when they change.
set(gemm_instances)
set(instance_folder ${PROJECT_BINARY_DIR}/gemm_instances)

# gemm_instance(NAME HEADERS BODY)
function(gemm_instance name headers body)
  list(TRANSFORM headers REPLACE "(.+)" "#include \"ops/cuda/gemm/\\1\"")
  list(JOIN headers "\n" includes)
  file(CONFIGURE OUTPUT ${instance_folder}/${name}.cu CONTENT
"// Written by src/ops/cuda/gemm/instances.cmake.
@includes@

namespace braid::cuda {

@body@

}  // namespace braid::cuda
" @ONLY)
  set(gemm_instances ${gemm_instances} ${instance_folder}/${name}.cu PARENT_SCOPE)
endfunction()

foreach(format F16 Q8 Q4K Q6K Q5 T4 Fp4)
  string(TOLOWER ${format} suffix)
  # Up to 8 rows, lists of experts, anything else.
  gemm_instance(gemm_${suffix} "gemm_skinny.cuh;gemm_mma.cuh;gemm_grouped.cuh"
"void launch_gemm_${suffix}(Context& context, int groups, const GemmArgs& args) {
  if (groups == 1 && (args.tiles != nullptr ? launch_gemm_grouped<Format${format}>(context, args)
                                            : launch_gemm_skinny<Format${format}>(context, args)))
    return;
  launch_gemm_mma<Format${format}>(context, groups, norm_first(context, args));
}")
  # wgmma (sm_90a).
  gemm_instance(gemm_wgmma_${suffix} "gemm_wgmma.cuh"
"void launch_gemm_wgmma_${suffix}(Context& context, int columns, const GemmArgs& args) {
  launch_gemm_wgmma<Format${format}>(context, columns, args);
}")
endforeach()

# Published mixes keep some tensors of an input in q6_K and the others in q4_K or q5_K: one launch takes both.
foreach(second Q4K Q5)
  string(TOLOWER ${second} suffix)
  gemm_instance(gemm_skinny_q6k_${suffix} "gemm_skinny.cuh"
"bool launch_gemm_skinny_q6k_${suffix}(Context& context, const GemmArgs& args, int second_block) {
  return launch_gemm_skinny<FormatQ6K, Format${second}>(context, args, second_block);
}")
  gemm_instance(gemm_wgmma_q6k_${suffix} "gemm_wgmma.cuh"
"void launch_gemm_wgmma_q6k_${suffix}(Context& context, int columns, const GemmArgs& args) {
  launch_gemm_wgmma<FormatQ6K, Format${second}>(context, columns, args);
}")
endforeach()
