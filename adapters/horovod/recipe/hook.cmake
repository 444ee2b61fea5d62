# What Horovod 0.28.1 (2023) needs to build against today's PyTorch and TensorFlow. Included by cmake
# right after `project(horovod)`; toolchain.cmake says how. Needs cmake 3.19 (DEFER).

# --- flags: fast to compile, small to ship -----------------------------------------------------------
# -O2 stands here because Horovod turns an -O2 in the RELWITHDEBINFO flags into -O3.
# The -include's: gcc 13 and later no longer bring these headers in by way of others.
# -w: three-year-old sources warn by the thousand, and would bury the one line that is an error.
set(CMAKE_CXX_FLAGS "${CMAKE_CXX_FLAGS} -O2 -w -include string -include stdexcept -include cstdint")
# -ffile-prefix-map: log lines name sources, and should not name the folder of a build long gone.
string(APPEND CMAKE_CXX_FLAGS " -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=")
set(CMAKE_CXX_FLAGS_RELWITHDEBINFO "-DNDEBUG")
set(CMAKE_C_FLAGS_RELWITHDEBINFO "-O2 -DNDEBUG")
if(NOT APPLE)
  set(CMAKE_SHARED_LINKER_FLAGS "${CMAKE_SHARED_LINKER_FLAGS} -s")
endif()

# --- mended sources ----------------------------------------------------------------------------------
# Replace `before` by `after` in a source of the unpacked sdist; stop if neither is there.
function(dream_mend path before after)
  file(READ "${PROJECT_SOURCE_DIR}/${path}" text)
  string(FIND "${text}" "${before}" found)
  string(FIND "${text}" "${after}" already)
  if(NOT found EQUAL -1)
    string(REPLACE "${before}" "${after}" text "${text}")
    file(WRITE "${PROJECT_SOURCE_DIR}/${path}" "${text}")
    message(STATUS "dream: mended ${path}")
  elseif(already EQUAL -1)
    message(FATAL_ERROR "dream: the text to mend is not in ${path}. Expected: ${before}")
  endif()
endfunction()

# The ranks are gathered into a vector that has room but no elements, so the stall inspector finds it
# empty and never fires: a rank that skips a tensor would hang the job for ever.
dream_mend("horovod/common/gloo/gloo_controller.cc"
           "global_ranks_.reserve(size_)" "global_ranks_.resize(size_)")

# --- host tensors only -------------------------------------------------------------------------------
# A CUDA or ROCm toolkit on the build machine would bring in kernels that this recipe does not know
# to build, and bind the wheel to something outside its key.
set(CMAKE_CUDA_COMPILER NOTFOUND)
foreach(toolkit "cuda CUDA" "hip ROCM")
  separate_arguments(toolkit)
  list(GET toolkit 0 version)
  list(GET toolkit 1 home)
  string(CONCAT question "import torch; from torch.utils.cpp_extension import ${home}_HOME; "
         "print(True if ((torch.version.${version} is not None) and (${home}_HOME is not None)) "
         "else False)")
  dream_mend("cmake/Modules/FindPytorch.cmake" "${question}" "print(False) # ${home}")
endforeach()

# --- targets, once they all exist --------------------------------------------------------------------
function(dream_standard target standard)
  if(TARGET ${target})
    set_target_properties(${target} PROPERTIES CXX_STANDARD ${standard} CXX_STANDARD_REQUIRED ON)
  endif()
endfunction()

# The XLA operations include headers that the TensorFlow wheel does not ship.
function(dream_drop_xla)
  get_target_property(sources tensorflow SOURCES)
  list(FILTER sources EXCLUDE REGEX "xla_mpi_ops\\.cc$")
  set_target_properties(tensorflow PROPERTIES SOURCES "${sources}")
endfunction()

# Horovod builds gloo a second time as C++17 for TensorFlow; ours is C++17 already.
function(dream_share_gloo)
  get_target_property(libraries tensorflow LINK_LIBRARIES)
  list(TRANSFORM libraries REPLACE "^compatible17_gloo$" "gloo")
  set_target_properties(tensorflow PROPERTIES LINK_LIBRARIES "${libraries}")
  set_target_properties(compatible17_gloo PROPERTIES EXCLUDE_FROM_ALL TRUE)
endfunction()

# Most of the time goes into reading torch's headers, so read them once for both files that need them.
function(dream_join_torch)
  set(folder "${PROJECT_SOURCE_DIR}/horovod/torch")
  set_source_files_properties("${folder}/adapter_v2.cc" "${folder}/mpi_ops_v2.cc"
                              TARGET_DIRECTORY pytorch PROPERTIES UNITY_GROUP torch)
  set_target_properties(pytorch PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
endfunction()

# The autotuner's mathematics: nothing waits for it, and it takes long to optimise.
function(dream_hurry target)
  if(TARGET ${target})
    set_source_files_properties("${PROJECT_SOURCE_DIR}/horovod/common/optim/gaussian_process.cc"
                                TARGET_DIRECTORY ${target} PROPERTIES COMPILE_OPTIONS -O1)
  endif()
endfunction()

function(dream_finish)
  dream_standard(gloo 17)
  dream_standard(tensorflow 17)
  dream_standard(pytorch 20)
  dream_hurry(tensorflow)
  dream_hurry(pytorch)
  if(TARGET pytorch)
    dream_join_torch()
  endif()
  if(TARGET tensorflow)
    dream_drop_xla()
  endif()
  if(TARGET tensorflow AND TARGET compatible17_gloo)
    dream_share_gloo()
  endif()
endfunction()

cmake_language(DEFER DIRECTORY "${CMAKE_SOURCE_DIR}" CALL dream_finish)
