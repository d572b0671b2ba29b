"""Code reward: run the unit tests of a program in the sandbox, judge and program in separate processes."""
