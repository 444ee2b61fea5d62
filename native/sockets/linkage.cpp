#include "linkage.h"

#include <cerrno>

#if defined(__linux__) && defined(__LP64__) && (defined(__x86_64__) || defined(__aarch64__))

#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

namespace dream {
namespace {

#if defined(__x86_64__)
constexpr uint32_t CALLED = R_X86_64_JUMP_SLOT, TAKEN = R_X86_64_GLOB_DAT;
#else
constexpr uint32_t CALLED = R_AARCH64_JUMP_SLOT, TAKEN = R_AARCH64_GLOB_DAT;
#endif

struct Wanted {
    const char *library;
    const Lead *leads;
    int count;
    int led;
};

// What the dynamic linker goes by.
struct Tables {
    const char *names = nullptr;
    const ElfW(Sym) *symbols = nullptr;
    const ElfW(Rela) *relocations[2] = {};
    size_t bytes[2] = {};
};

const ElfW(Phdr) *segment(const dl_phdr_info &library, uint32_t type) {
    for (int i = 0; i < library.dlpi_phnum; ++i)
        if (library.dlpi_phdr[i].p_type == type) return &library.dlpi_phdr[i];
    return nullptr;
}

Tables tables(const dl_phdr_info &library) {
    Tables found;
    const ElfW(Phdr) *dynamic = segment(library, PT_DYNAMIC);
    if (!dynamic) return found;
    // glibc has made them addresses in memory, other linkers have left them as they are in the file
    auto address = [&](ElfW(Addr) value) {
        return value < library.dlpi_addr ? library.dlpi_addr + value : value;
    };
    auto entry = reinterpret_cast<const ElfW(Dyn) *>(library.dlpi_addr + dynamic->p_vaddr);
    for (; entry->d_tag != DT_NULL; ++entry) {
        ElfW(Addr) value = entry->d_un.d_ptr;
        switch (entry->d_tag) {
            case DT_STRTAB: found.names = reinterpret_cast<const char *>(address(value)); break;
            case DT_SYMTAB:
                found.symbols = reinterpret_cast<const ElfW(Sym) *>(address(value));
                break;
            case DT_JMPREL:
                found.relocations[0] = reinterpret_cast<const ElfW(Rela) *>(address(value));
                break;
            case DT_RELA:
                found.relocations[1] = reinterpret_cast<const ElfW(Rela) *>(address(value));
                break;
            case DT_PLTRELSZ: found.bytes[0] = entry->d_un.d_val; break;
            case DT_RELASZ: found.bytes[1] = entry->d_un.d_val; break;
        }
    }
    return found;
}

// The table may have been made read-only once it was filled.
bool write(const dl_phdr_info &library, void **slot, void *to) {
    if (*slot == to) return true;
    const size_t page = size_t(sysconf(_SC_PAGESIZE));
    auto start = reinterpret_cast<uintptr_t>(slot) / page * page;
    auto at = reinterpret_cast<void *>(start);
    if (mprotect(at, page, PROT_READ | PROT_WRITE)) return false;
    __atomic_store_n(slot, to, __ATOMIC_RELEASE);
    const ElfW(Phdr) *sealed = segment(library, PT_GNU_RELRO);
    if (!sealed) return true;
    uintptr_t from = library.dlpi_addr + sealed->p_vaddr;
    if (start >= from / page * page && start + page <= from + sealed->p_memsz)
        return mprotect(at, page, PROT_READ) == 0;
    return true;
}

bool lead(const dl_phdr_info &library, Wanted &wanted) {
    const Tables found = tables(library);
    if (!found.names || !found.symbols) return true;
    for (int table = 0; table < 2; ++table) {
        const ElfW(Rela) *each = found.relocations[table];
        const ElfW(Rela) *end = each ? each + found.bytes[table] / sizeof *each : nullptr;
        for (; each != end; ++each) {
            uint32_t type = uint32_t(ELF64_R_TYPE(each->r_info));
            if (type != CALLED && type != TAKEN) continue;
            const char *name = found.names + found.symbols[ELF64_R_SYM(each->r_info)].st_name;
            for (int i = 0; i < wanted.count; ++i) {
                if (std::strcmp(name, wanted.leads[i].function)) continue;
                auto slot = reinterpret_cast<void **>(library.dlpi_addr + each->r_offset);
                if (!write(library, slot, wanted.leads[i].to)) return false;
                ++wanted.led;
            }
        }
    }
    return true;
}

int look(dl_phdr_info *library, size_t, void *context) {
    auto &wanted = *static_cast<Wanted *>(context);
    const char *name = std::strrchr(library->dlpi_name, '/');
    name = name ? name + 1 : library->dlpi_name;
    if (std::strncmp(name, wanted.library, std::strlen(wanted.library))) return 0;
    if (lead(*library, wanted)) return 0;
    wanted.led = -1;
    return 1;
}

}  // namespace

int lead_calls(const char *library, const Lead *leads, int count) {
    Wanted wanted{library, leads, count, 0};
    dl_iterate_phdr(look, &wanted);
    return wanted.led;
}

}  // namespace dream

#else

int dream::lead_calls(const char *, const Lead *, int) {
    errno = ENOSYS;
    return -1;
}

#endif
