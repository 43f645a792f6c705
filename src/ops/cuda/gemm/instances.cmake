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
  gemm_instance(products_${suffix} "product_few.cuh;product_kernel.cuh;product_list.cuh"
"void launch_products_${suffix}(Context& context, int groups, const ProductArgs& args) {
  if (groups == 1 && (args.tiles != nullptr ? launch_list<Format${format}>(context, args)
                                            : launch_few<Format${format}>(context, args)))
    return;
  launch_format<Format${format}>(context, groups, norm_first(context, args));
}")
  # wgmma (sm_90a).
  gemm_instance(products_wide_${suffix} "product_wide.cuh"
"void launch_wide_${suffix}(Context& context, int columns, const ProductArgs& args) {
  launch_wide<Format${format}>(context, columns, args);
}")
endforeach()

# Published mixes keep some tensors of an input in q6_K and the others in q4_K or q5_K: one launch takes both.
foreach(second Q4K Q5)
  string(TOLOWER ${second} suffix)
  gemm_instance(products_few_q6k_${suffix} "product_few.cuh"
"bool launch_few_q6k_${suffix}(Context& context, const ProductArgs& args, int second_block) {
  return launch_few<FormatQ6K, Format${second}>(context, args, second_block);
}")
  gemm_instance(products_wide_q6k_${suffix} "product_wide.cuh"
"void launch_wide_q6k_${suffix}(Context& context, int columns, const ProductArgs& args) {
  launch_wide<FormatQ6K, Format${second}>(context, columns, args);
}")
endforeach()
