"""Runs a command whose stderr is a terminal of 120 columns, and keeps what it showed there.
usage: terminal.py FILE COMMAND..."""
import fcntl, os, pty, struct, subprocess, sys, termios

ours, theirs = pty.openpty()
fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 120, 0, 0))
child = subprocess.Popen(sys.argv[2:], stderr=theirs)
os.close(theirs)
with open(sys.argv[1], "wb") as out:
    while True:
        try:
            data = os.read(ours, 65536)
        except OSError:  # the last writer has closed it
            break
        if not data:
            break
        out.write(data)
sys.exit(child.wait())
