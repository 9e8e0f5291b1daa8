# Every library the project stands on comes from the distribution's packages: see
# tests/install_dependencies.sh for their names.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(Boost 1.74 REQUIRED)            # Interprocess: shm/segment.cc only
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)   # actors/wire/socket.cc, through cppzmq
# libzmq's own dependencies bring -isystem flags, which FindPkgConfig places differently when it
# reads its cache: a second configure would change command lines and build anew. Its header needs
# nothing of them.
set_target_properties(PkgConfig::ZMQ PROPERTIES
  INTERFACE_COMPILE_OPTIONS "" INTERFACE_INCLUDE_DIRECTORIES "${ZMQ_INCLUDEDIR}")
find_package(spdlog REQUIRED)
find_package(nlohmann_json REQUIRED)
pkg_check_modules(XXHASH REQUIRED IMPORTED_TARGET libxxhash)
find_package(CLI11 REQUIRED)
pkg_check_modules(TOMLPLUSPLUS REQUIRED IMPORTED_TARGET tomlplusplus)
find_library(GLOO_LIBRARY gloo REQUIRED)
if(OPTLEASE_TESTS)
  find_package(GTest REQUIRED)
  find_package(benchmark REQUIRED)
endif()

# CUDA is found, not required: without it everything builds for the CPU device. The runtime is
# linked statically and no target links libcuda.so, so every program starts on machines without a
# driver.
set(OPTLEASE_HAVE_CUDA OFF)
if(OPTLEASE_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  find_package(CUDAToolkit QUIET)
  if(CMAKE_CUDA_COMPILER AND TARGET CUDA::cudart_static)
    set(OPTLEASE_HAVE_CUDA ON)
    set(OPTLEASE_CUDA_ARCHITECTURES "" CACHE STRING
      "As CMAKE_CUDA_ARCHITECTURES; empty: 8.0, 9.0, 10.0")
    enable_language(CUDA)
    if(OPTLEASE_CUDA_ARCHITECTURES)
      set(CMAKE_CUDA_ARCHITECTURES ${OPTLEASE_CUDA_ARCHITECTURES})
    elseif(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90-real 100)
    else()
      set(CMAKE_CUDA_ARCHITECTURES 80-real 90)
    endif()
    # CMake 3.25 knows no C++20 for nvcc; the headers that device code includes need none.
    set(CMAKE_CUDA_STANDARD 17)
    set(CMAKE_CUDA_STANDARD_REQUIRED ON)
    set(CMAKE_CUDA_EXTENSIONS OFF)
    set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
    # Between GPUs; actors/gpu_actor/nccl_*.cc only. The header is needed; the library (2.19 or
    # later, of the header's major version) is loaded at run time by ranks that have peers, from
    # where the loader looks or else from where it is found now: programs start without it.
    find_path(NCCL_INCLUDE_DIR nccl.h HINTS ${CUDAToolkit_INCLUDE_DIRS} REQUIRED)
    find_library(NCCL_LIBRARY nccl HINTS ${CUDAToolkit_LIBRARY_DIR})
    set(OPTLEASE_NCCL_FOUND_AT "")
    if(NCCL_LIBRARY)
      get_filename_component(nccl_folder "${NCCL_LIBRARY}" DIRECTORY)
      set(OPTLEASE_NCCL_FOUND_AT "${nccl_folder}/libnccl.so.2")
    endif()
  endif()
endif()
