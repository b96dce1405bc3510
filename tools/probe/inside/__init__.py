"""Scripts that run inside the interpreter that is asked: standard library alone, Python 3.9 on, one file each."""
