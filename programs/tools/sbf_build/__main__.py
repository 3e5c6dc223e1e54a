import sys

from sbf_build.cli import main

sys.exit(main(sys.argv[1:]))
