/* The few words of a test in C: a failed CHECK prints where and ends the program with 1. */
#ifndef OPTLEASE_TESTS_C_CHECK_H
#define OPTLEASE_TESTS_C_CHECK_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition)                                                      \
  do {                                                                        \
    if (!(condition)) {                                                       \
      fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition); \
      exit(1);                                                                \
    }                                                                         \
  } while (0)

/* That the call has this status, and what it said otherwise. */
#define CHECK_STATUS(call, wanted)                                                \
  do {                                                                            \
    const optlease_status got_ = (call);                                          \
    if (got_ != (wanted)) {                                                       \
      fprintf(stderr, "%s:%d: %s is %s, not %s: %s\n", __FILE__, __LINE__, #call, \
              optlease_status_name(got_), optlease_status_name(wanted),           \
              optlease_last_error(NULL));                                         \
      exit(1);                                                                    \
    }                                                                             \
  } while (0)

/* That the text has this part; prints the text otherwise. */
#define CHECK_SAYS(text, part)                                                                   \
  do {                                                                                           \
    const char* text_ = (text);                                                                  \
    if (strstr(text_, (part)) == NULL) {                                                         \
      fprintf(stderr, "%s:%d: \"%s\" does not say \"%s\"\n", __FILE__, __LINE__, text_, (part)); \
      exit(1);                                                                                   \
    }                                                                                            \
  } while (0)

typedef struct c_case {
  const char* name;
  void (*run)(void);
} c_case;

/* c_steps_test.c; ends with a NULL name. */
extern const c_case step_cases[];

#endif
