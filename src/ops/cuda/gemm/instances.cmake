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

set(arguments "(Context&, const GemmLaunch&)")
set(column_arguments "(Context&, int columns, const GemmLaunch&)")

foreach(format F16 Q8 Q4K Q6K Q5 T4 Fp4)
  string(TOLOWER ${format} suffix)
  set(one Format${format})
  gemm_instance(gemm_${suffix} "gemm_skinny.cuh;gemm_mma.cuh"
"template bool launch_gemm_skinny<${one}, ${one}>${arguments};
template void launch_gemm_mma<${one}>${column_arguments};")
  gemm_instance(gemm_wgmma_${suffix} "gemm_wgmma.cuh"
"template void launch_gemm_wgmma<${one}, ${one}>${column_arguments};")
  if(format STREQUAL Q4K)
    gemm_instance(gemm_wide_${suffix} "gemm_wide.cuh"
"template bool launch_gemm_wide<${one}, ${one}>${arguments};")
  endif()
  set(persistent "
template bool launch_gemm_grouped_persistent<${one}>${arguments};")
  if(format STREQUAL F16)
    set(persistent "")
  endif()
  gemm_instance(gemm_grouped_${suffix} "gemm_grouped.cuh;gemm_grouped_persistent.cuh"
"template bool launch_gemm_grouped<${one}>${arguments};${persistent}")
endforeach()

# Published mixes keep some tensors of an input in q6_K and the others in q4_K or q5_K: one launch takes both.
foreach(second Q4K Q5)
  string(TOLOWER ${second} suffix)
  set(two "FormatQ6K, Format${second}")
  gemm_instance(gemm_q6k_${suffix} "gemm_skinny.cuh"
"template bool launch_gemm_skinny<${two}>${arguments};")
  gemm_instance(gemm_wgmma_q6k_${suffix} "gemm_wgmma.cuh"
"template void launch_gemm_wgmma<${two}>${column_arguments};")
endforeach()
gemm_instance(gemm_wide_q6k_q4k "gemm_wide.cuh"
"template bool launch_gemm_wide<FormatQ6K, FormatQ4K>${arguments};")
