#!/bin/sh
# Stands in for `samite exec-unit` in the tests of this crate: drops the options and runs the program.
while [ "$1" != "--" ]; do shift; done
shift
exec "$@"
