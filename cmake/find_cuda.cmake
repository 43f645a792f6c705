# find_cuda.cmake -- whether the CUDA backend is built, and for which GPUs. BRAID_CUDA says it, or AUTO (the default):
# where nvcc is found (CUDACXX, the PATH, CUDA_HOME, CUDA_PATH, and where toolkits install themselves), for the architectures of
# BRAID_CUDA_ARCHS, else for those of the GPUs in this machine. Without either
# it is left out with one line, because all supported architectures take most of an hour; ON without either builds them all.
# Results: braid_cuda (ON, OFF), BRAID_CUDA_ARCHS (a list).
#
# An architecture is machine code for its cards: 90a; with its PTX where newer cards can use that: 86; or PTX alone, which a driver
# compiles when a kernel first runs: 80-virtual, 90-virtual. What was not named explicitly has PTX with it, so that cards newer than
# all that machine code is for start, too: those from 10.0 on from that of 90-virtual, which has all but wgmma.
set(BRAID_CUDA AUTO CACHE STRING "Build the CUDA backend: ON, OFF, or AUTO")
set(BRAID_CUDA_ARCHS "" CACHE STRING "GPU architectures to build for, e.g. 90a or 80-virtual; empty: those of this machine's GPUs")
set(braid_supported_archs 80 86-real 89-real 90a 90-virtual 120a)

# The architectures of the GPUs in this machine; empty if there is none, or no driver for it.
function(find_gpus out)
  execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
    OUTPUT_VARIABLE present ERROR_QUIET RESULT_VARIABLE status OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT status EQUAL 0 OR NOT present MATCHES "^[0-9]+[.][0-9]")
    set(present "")
  endif()
  string(REPLACE "." "" present "${present}")
  string(REGEX REPLACE "[ \n]+" ";" present "${present}")
  list(REMOVE_DUPLICATES present)
  list(TRANSFORM present REPLACE "^(90|12[01])$" "\\1a;\\1-virtual")
  string(REPLACE "\\;" ";" present "${present}")
  set(${out} "${present}" PARENT_SCOPE)
endfunction()

# Toolkits are often not on the PATH. The newest one of several.
function(find_nvcc)
  if(CMAKE_CUDA_COMPILER OR DEFINED ENV{CUDACXX})
    return()
  endif()
  file(GLOB toolkits /usr/local/cuda-*)
  list(SORT toolkits COMPARE NATURAL ORDER DESCENDING)
  list(TRANSFORM toolkits APPEND /bin)
  find_program(BRAID_NVCC nvcc HINTS $ENV{CUDA_HOME}/bin $ENV{CUDA_PATH}/bin
    PATHS /usr/local/cuda/bin ${toolkits} /opt/cuda/bin)
  mark_as_advanced(BRAID_NVCC)
  if(BRAID_NVCC)
    set(CMAKE_CUDA_COMPILER ${BRAID_NVCC} CACHE FILEPATH "CUDA compiler")
  endif()
endfunction()

if(NOT BRAID_CUDA STREQUAL "OFF")
  find_nvcc()
endif()
if(BRAID_CUDA STREQUAL "AUTO")
  include(CheckLanguage)
  check_language(CUDA)
  set(braid_cuda OFF)
  if(CMAKE_CUDA_COMPILER)
    if(NOT BRAID_CUDA_ARCHS)
      find_gpus(BRAID_CUDA_ARCHS)
    endif()
    if(BRAID_CUDA_ARCHS)
      set(braid_cuda ON)
    else()
      message(NOTICE "CPU only: nvcc is here, but no GPU. For CUDA: make build CMAKE_FLAGS=-DBRAID_CUDA_ARCHS=90a (or 80, 86, 89, 120a, 90-virtual)")
    endif()
  else()
    find_gpus(gpus)
    if(gpus OR BRAID_CUDA_ARCHS)
      message(NOTICE "CPU only, although a GPU is wanted: nvcc is not found. Install the CUDA toolkit, or name it: CUDACXX=/path/of/nvcc")
    else()
      message(NOTICE "CPU only: no nvcc. For a GPU install the CUDA toolkit (CUDACXX=/path/of/nvcc names it)")
    endif()
  endif()
else()
  set(braid_cuda ${BRAID_CUDA})
  if(braid_cuda AND NOT BRAID_CUDA_ARCHS)
    find_gpus(BRAID_CUDA_ARCHS)
    if(NOT BRAID_CUDA_ARCHS)
      set(BRAID_CUDA_ARCHS ${braid_supported_archs})
    endif()
  endif()
endif()
