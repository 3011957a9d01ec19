"""A stand-in for xpk, which only checks its flags."""

import sys

from tool import Call

Call("xpk", sys.argv[1:])
