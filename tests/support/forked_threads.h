// For tests that start threads in a child which was forked and does not call exec.
#pragma once

#include <gtest/gtest.h>

// ThreadSanitizer ends such a child: its runtime knows only the threads of before the fork.
#if defined(__SANITIZE_THREAD__)
#define OPTLEASE_SKIP_FORKED_THREADS() \
  GTEST_SKIP() << "ThreadSanitizer allows no threads in a child that was forked without exec"
#else
#define OPTLEASE_SKIP_FORKED_THREADS() static_cast<void>(0)
#endif
