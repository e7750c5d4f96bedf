"""`python -m fairq_schema.demo`: the same as `fairq demo`."""

import argparse

from fairq_schema.demo.run import add_arguments, main

if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m fairq_schema.demo", description=main.__doc__)
    add_arguments(parser)
    raise SystemExit(main(**vars(parser.parse_args())))
