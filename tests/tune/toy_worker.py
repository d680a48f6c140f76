"""A worker that does as it is told: the process that the tests hang, crash and confuse."""

import os
import signal
import subprocess
import sys
import tempfile
import time

from mlc_compile.tune.worker import serve


def answer(question: str) -> object:
    match question:
        case "hang":
            time.sleep(600)
        case "work":
            tempfile.mkdtemp()
            subprocess.run(["sleep", "600"], check=False)
        case "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "exit":
            sys.stderr.write("out of luck\n")
            sys.exit(3)
        case "refuse":
            raise ValueError("not like this")
        case "print":
            os.write(1, b"noise of a library\n")
    return {"question": question, "pid": os.getpid()}


if __name__ == "__main__":
    serve(str, answer)
