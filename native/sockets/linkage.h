// A loaded library's calls of the functions that it takes from other libraries.
#pragma once

namespace dream {

struct Lead {
    const char *function;
    void *to;
};

// Leads those calls of every loaded library whose file's name begins with `library` elsewhere. How
// many there were; -1 and errno where the system refused.
int lead_calls(const char *library, const Lead *leads, int count);

}  // namespace dream
