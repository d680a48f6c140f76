# How the scripts here refuse, and find what they run. Each sources this and defines `usage`.
# They run under bash 3.2, which macOS has: no mapfile, and with set -u an empty array is unset.

# misused MESSAGE: tell it with the usage.
misused() {
  printf 'error: %s\n' "$1" >&2
  usage >&2
  exit 2
}

# refuse CODE MESSAGE HINT
refuse() {
  printf 'error: %s\n hint: %s\n' "$2" "$3" >&2
  exit "$1"
}

# operands NAME ARGUMENT...: refuse an option among what is left, where getopts stopped.
operands() {
  local name=$1 argument
  shift
  for argument; do
    [[ $argument != -?* ]] || misused "options go before $name: $argument"
  done
}

# find_tool HINT: set `tool` to the words of MLC_COMPILE; a program's path is one, blanks and all.
find_tool() {
  local named=${MLC_COMPILE:-mlc-compile}
  tool=("$named")
  [[ -f $named && -x $named ]] || read -ra tool <<<"$named"
  on_path "${tool[0]}" "$1"
}

# on_path COMMAND HINT: refuse if there is no such command.
on_path() {
  command -v "$1" >/dev/null || refuse 2 "$1 is not on the PATH" "$2"
}
