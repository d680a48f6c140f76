# How the scripts here refuse: sourced by them, each of which defines `usage`.

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

# on_path COMMAND HINT: refuse if there is no such command.
on_path() {
  command -v "$1" >/dev/null || refuse 2 "$1 is not on the PATH" "$2"
}
