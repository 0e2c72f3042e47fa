"""Like a JVM: slow to start, full of threads, and in no hurry when it is asked to end. It works on until it does."""
import sys, threading, time

time.sleep(3)
for _ in range(100):
    threading.Thread(target=threading.Event().wait, daemon=True).start()


def end():
    def exit():
        time.sleep(4)
        stopping.set()
    threading.Thread(target=exit).start()


sys.argv = ["app.py"]
source = open("/etc/programs/app.py").read().replace("finish, received = stopping.set, 0", "finish, received = end, 0").replace("sys.exit(0)", "sys.exit(128 + received)")
exec(compile(source, "app.py", "exec"))
