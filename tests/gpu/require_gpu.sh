# Sourced by the scripts of this folder: ends the script in words, with the exit code of the
# programs for it, where no GPU can be seen. Looks for device files and asks no driver, which may
# hang.
#   require_gpu SCRIPT_NAME
require_gpu() {
  compgen -G '/dev/nvidia[0-9]*' > /dev/null && return
  [ -e /dev/dxg ] && return # GPUs of a Windows host
  echo "$1: no GPU on this machine (there is no /dev/nvidia0; in a container: --gpus all);" \
    "nothing was built or run. What needs no GPU is tested by tests/run.sh" >&2
  exit 14
}
