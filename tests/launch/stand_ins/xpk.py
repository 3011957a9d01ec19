"""Stands in for xpk, which its list of flags describes."""

import sys

from tool import Call

Call("xpk", sys.argv[1:])
