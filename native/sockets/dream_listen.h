/* Where the servers of other libraries in this process listen, and whom they take.

   TensorFlow's server binds to every interface and cannot be told otherwise; gloo, in torch and in
   Horovod, takes any free port; and none of them asks who comes. So the library's own calls of
   bind, accept and accept4 are led through functions of dream's, by the table of addresses that
   the dynamic linker keeps for it. Nothing else in the process is touched. What holds, holds for
   every library that is held, from before it listens: there is no moment at which it was open. */
#ifndef DREAM_LISTEN_H
#define DREAM_LISTEN_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Lead the calls of every loaded library whose file's name begins so. How many calls there were,
   0 where there is no such library or it makes none; -1: the system refused, see errno. Again, it
   changes nothing. */
int dream_listen_hold(const char *library);

/* A library asks for the host's name, to listen at the address that it stands for: it is given this
   one, of 255 letters at most, instead. Returns as dream_listen_hold does. */
int dream_listen_as(const char *library, const char *name);

/* A bind to all interfaces at this port is one to this address (IPv4 or IPv6, in digits) instead.
   One port and address; -1: that is no address. */
int dream_listen_at(uint16_t port, const char *address);

/* A bind to any free port takes one from low to high; 0, 0: as ever. EADDRINUSE where all are
   taken. */
void dream_listen_range(uint16_t low, uint16_t high);

/* Close what does not come from a process of this user on this host. -1 and errno where the system
   does not tell whose a connection is. */
int dream_listen_own_user(int only);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
