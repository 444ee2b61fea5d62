// Who is at the other end of a connection.
#pragma once

namespace dream {

// Whether the system tells at all.
bool users_are_known();

// Whether a connection comes from a process of this user on this host, by whatever address.
bool may_come(int fd);

}  // namespace dream
