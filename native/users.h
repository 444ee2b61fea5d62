// Who is at the other end of a connection.
#pragma once

namespace dream {

// Whether a connection comes from another host, which is not asked here, or from a process of this
// process's user.
bool may_come(int fd);

}  // namespace dream
