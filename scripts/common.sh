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

NUMBER='(0|[1-9][0-9]{0,8})' # no 010, which bash reads as 8

# whole_number OPTION VALUE LEAST [MOST]: refuse any other value, with the usage.
whole_number() {
  [[ $2 =~ ^$NUMBER$ ]] || misused "$1 must be a whole number, got '$2'"
  (($2 >= $3 && $2 <= ${4:-$2})) || misused "$1 must be $3 ${4:+to }${4:-or more}, got $2"
}

# whole_numbers OPTION LIST LEAST: the same of each number in a list.
whole_numbers() {
  local number
  [[ $2 =~ ^$NUMBER(,$NUMBER)*$ ]] ||
    misused "$1 must be whole numbers separated by commas, got '$2'"
  for number in ${2//,/ }; do whole_number "$1" "$number" "$3"; done
}

# cores: how many this process may use. macOS has no nproc, and no affinity.
cores() {
  # OpenMP's variables limit what nproc tells, but not us.
  env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc 2>/dev/null || getconf _NPROCESSORS_ONLN
}

# results FILE...: make their directories; refuse where one cannot be written.
results() {
  local file directory
  for file; do
    directory=$(dirname -- "$file")
    mkdir -p -- "$directory" 2>/dev/null && [[ -w $directory && ! -d $file ]] &&
      [[ ! -e $file || -w $file ]] ||
      refuse 2 "$file cannot be written" "name another place with -o"
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
