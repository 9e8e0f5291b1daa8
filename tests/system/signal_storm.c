/* Loaded into every program of a job (LD_PRELOAD): a timer of one millisecond whose handler does
 * not restart calls, from before main() to the end. What does not handle EINTR fails soon. */
#include <signal.h>
#include <stddef.h>
#include <sys/time.h>

static void on_alarm(int number) { (void)number; }

__attribute__((constructor)) static void begin(void) {
  struct sigaction action = {0};
  const struct itimerval storm = {{0, 1000}, {0, 1000}};
  action.sa_handler = on_alarm;
  sigaction(SIGALRM, &action, NULL);
  setitimer(ITIMER_REAL, &storm, NULL);
}
