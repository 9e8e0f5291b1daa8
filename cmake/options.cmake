# The one interface target that every target of this project links: warnings as errors, the
# floating-point rules, sanitizers.
add_library(optlease_options INTERFACE)
target_include_directories(optlease_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(optlease_options INTERFACE
  -Wall -Wextra -Werror -Wshadow $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor> -Wvla
  -Wno-missing-field-initializers  # designated initializers leave the rest to its defaults
  -ffp-contract=off -fno-fast-math -fvisibility=hidden)
if(OPTLEASE_SANITIZE)
  target_compile_options(optlease_options INTERFACE -fsanitize=${OPTLEASE_SANITIZE} -fno-omit-frame-pointer)
  target_link_options(optlease_options INTERFACE -fsanitize=${OPTLEASE_SANITIZE})
endif()
