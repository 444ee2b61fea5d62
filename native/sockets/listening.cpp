// The functions that held libraries call in place of bind, accept and accept4.
#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // accept4
#endif

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <random>

#include "dream_listen.h"
#include "linkage.h"
#include "users.h"

namespace dream {
namespace {

std::mutex guard;  // of the next two
uint16_t port_led = 0;
in6_addr address_led;
std::atomic<uint32_t> range{0};  // low, then high
std::atomic<bool> own_user{false};

// Of an IPv4 or IPv6 address; null of another kind.
in_port_t *port_of(sockaddr_storage &address) {
    if (address.ss_family == AF_INET) return &reinterpret_cast<sockaddr_in &>(address).sin_port;
    if (address.ss_family == AF_INET6) return &reinterpret_cast<sockaddr_in6 &>(address).sin6_port;
    return nullptr;
}

bool everywhere(const sockaddr_storage &address) {
    if (address.ss_family == AF_INET)
        return reinterpret_cast<const sockaddr_in &>(address).sin_addr.s_addr == INADDR_ANY;
    return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6 &>(address).sin6_addr);
}

// From all interfaces to the one address. A socket of IPv4 cannot take one of IPv6: it then binds
// to nothing that this host has, and fails, as it must not listen everywhere.
void lead_address(sockaddr_storage &address) {
    if (address.ss_family == AF_INET6) {
        reinterpret_cast<sockaddr_in6 &>(address).sin6_addr = address_led;
        return;
    }
    auto &to = reinterpret_cast<sockaddr_in &>(address).sin_addr;
    if (IN6_IS_ADDR_V4MAPPED(&address_led))
        std::memcpy(&to, &address_led.s6_addr[12], sizeof to);
    else
        to.s_addr = INADDR_NONE;
}

// Without address reuse, which would give a port that somebody holds and does not listen on yet.
int bind_in(uint16_t low, uint16_t high, int fd, sockaddr_storage &address, socklen_t length) {
    static thread_local std::minstd_rand random{std::random_device{}()};
    int reuse = 0, off = 0;
    socklen_t size = sizeof reuse;
    getsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, &size);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &off, sizeof off);
    const uint32_t count = uint32_t(high - low) + 1, first = uint32_t(random()) % count;
    int code = -1;
    errno = EADDRINUSE;
    for (uint32_t i = 0; code && errno == EADDRINUSE && i < count; ++i) {
        *port_of(address) = htons(uint16_t(low + (first + i) % count));
        code = bind(fd, reinterpret_cast<sockaddr *>(&address), length);
    }
    const int why = errno;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &reuse, sizeof reuse);
    errno = why;
    return code;
}

bool is_stream(int fd) {
    int kind = 0;
    socklen_t size = sizeof kind;
    return !getsockopt(fd, SOL_SOCKET, SO_TYPE, &kind, &size) && kind == SOCK_STREAM;
}

int led_bind(int fd, const sockaddr *asked, socklen_t length) {
    sockaddr_storage address{};
    if (!asked || length > sizeof address || !is_stream(fd)) return bind(fd, asked, length);
    std::memcpy(&address, asked, length);
    const in_port_t *port = port_of(address);
    if (!port) return bind(fd, asked, length);
    if (*port == 0) {
        const uint32_t both = range;
        if (!both) return bind(fd, asked, length);
        return bind_in(uint16_t(both >> 16), uint16_t(both), fd, address, length);
    }
    if (everywhere(address)) {
        std::lock_guard<std::mutex> held(guard);
        if (ntohs(*port) == port_led) lead_address(address);
    }
    return bind(fd, reinterpret_cast<sockaddr *>(&address), length);
}

// The next one that may come. Others are let in and closed: they have been heard of nowhere.
template <class Accept>
int next(Accept accept, sockaddr *address, socklen_t *length) {
    const socklen_t room = length ? *length : 0;
    for (;;) {
        const int came = accept(address, length);
        if (came < 0 || !own_user || may_come(came)) return came;
        close(came);
        if (length) *length = room;
    }
}

int led_accept(int fd, sockaddr *address, socklen_t *length) {
    return next([fd](sockaddr *a, socklen_t *l) { return accept(fd, a, l); }, address, length);
}

#if defined(__linux__)
int led_accept4(int fd, sockaddr *address, socklen_t *length, int flags) {
    auto accept = [fd, flags](sockaddr *a, socklen_t *l) { return accept4(fd, a, l, flags); };
    return next(accept, address, length);
}
#endif

char host_name[256] = "";  // under the guard

int led_gethostname(char *name, size_t size) {
    std::lock_guard<std::mutex> held(guard);
    if (std::strlen(host_name) >= size) {
        errno = ENAMETOOLONG;
        return -1;
    }
    std::strcpy(name, host_name);
    return 0;
}

const Lead LEADS[] = {
    {"bind", reinterpret_cast<void *>(led_bind)},
    {"accept", reinterpret_cast<void *>(led_accept)},
#if defined(__linux__)
    {"accept4", reinterpret_cast<void *>(led_accept4)},
#endif
};

}  // namespace
}  // namespace dream

int dream_listen_hold(const char *library) {
    return dream::lead_calls(library, dream::LEADS, sizeof dream::LEADS / sizeof *dream::LEADS);
}

int dream_listen_as(const char *library, const char *name) {
    if (std::strlen(name) >= sizeof dream::host_name) {
        errno = ENAMETOOLONG;
        return -1;
    }
    {
        std::lock_guard<std::mutex> held(dream::guard);
        std::strcpy(dream::host_name, name);
    }
    const dream::Lead lead{"gethostname", reinterpret_cast<void *>(dream::led_gethostname)};
    return dream::lead_calls(library, &lead, 1);
}

int dream_listen_at(uint16_t port, const char *address) {
    in6_addr found{};
    in_addr short_one{};
    if (inet_pton(AF_INET, address, &short_one) == 1) {
        found.s6_addr[10] = found.s6_addr[11] = 0xff;
        std::memcpy(&found.s6_addr[12], &short_one, sizeof short_one);
    } else if (inet_pton(AF_INET6, address, &found) != 1) {
        return -1;
    }
    std::lock_guard<std::mutex> held(dream::guard);
    dream::port_led = port;
    dream::address_led = found;
    return 0;
}

void dream_listen_range(uint16_t low, uint16_t high) { dream::range = uint32_t(low) << 16 | high; }

int dream_listen_own_user(int only) {
    if (only && !dream::users_are_known()) return -1;
    dream::own_user = only != 0;
    return 0;
}
