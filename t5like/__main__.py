import sys

from t5like.cli.main import main

sys.exit(main())
