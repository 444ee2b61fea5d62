"""Start the ranks of a job, watch them, end them together. No framework is imported here.

The public function `dream.launch` lives in `function`; it hides this package's name, so inside
dream the modules are imported by their full names.
"""
