# Handed to the unmodified Horovod sdist as CMAKE_TOOLCHAIN_FILE: the one door cmake leaves open to
# somebody else's project from outside. It changes no compiler.

# cmake 4 refuses projects that ask for less than 3.5; the bundled gloo asks for 2.8.12.
set(CMAKE_POLICY_VERSION_MINIMUM 3.5)

# Runs right after `project(horovod)`, before anything else of its CMakeLists.txt.
set(CMAKE_PROJECT_horovod_INCLUDE "${CMAKE_CURRENT_LIST_DIR}/hook.cmake")
