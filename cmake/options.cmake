# The one interface target that every target of this project links: warnings as errors, the
# floating-point rules, sanitizers.
add_library(optlease_options INTERFACE)
target_include_directories(optlease_options INTERFACE ${PROJECT_SOURCE_DIR})
# -Wno-missing-field-initializers: designated initializers leave the rest to its defaults. nvcc
# gets its own list: the floating-point rules again, and none of g++'s warnings, which the code it
# generates would not pass.
target_compile_options(optlease_options INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-Wall -Wextra -Werror -Wshadow -Wvla -Wno-missing-field-initializers
    -ffp-contract=off -fno-fast-math -fvisibility=hidden>
  $<$<COMPILE_LANGUAGE:CXX>:-Wnon-virtual-dtor>
  $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false -prec-div=true -prec-sqrt=true -ftz=false
    -Werror=all-warnings -Xcompiler=-ffp-contract=off -Xcompiler=-fvisibility=hidden>)
if(OPTLEASE_SANITIZE)
  target_compile_options(optlease_options INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${OPTLEASE_SANITIZE} -fno-omit-frame-pointer>)
  target_link_options(optlease_options INTERFACE -fsanitize=${OPTLEASE_SANITIZE})
endif()
