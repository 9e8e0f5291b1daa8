# Every library the project stands on comes from the distribution's packages: see
# tests/install_dependencies.sh for their names.
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(Boost 1.74 REQUIRED)            # Interprocess: shm/segment.cc only
pkg_check_modules(ZMQ REQUIRED IMPORTED_TARGET libzmq)   # actors/wire/socket.cc only, through cppzmq
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

set(OPTLEASE_HAVE_CUDA OFF)
if(OPTLEASE_CUDA)
  include(CheckLanguage)
  check_language(CUDA)
  if(CMAKE_CUDA_COMPILER)
    set(OPTLEASE_HAVE_CUDA ON)
  endif()
endif()
