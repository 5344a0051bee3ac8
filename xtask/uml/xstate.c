// A library for LD_PRELOAD that lets User-Mode Linux run on CPUs whose XSAVE area is larger than
// the area for which User-Mode Linux was built (AMX: 11 KiB; Linux 6.1 reserves 2.7 KiB).
//
// The library changes one ptrace request, PTRACE_SETREGSET, and passes on all other requests.
//
// PTRACE_SETREGSET of NT_X86_XSTATE requires the CPU's whole XSAVE area or fails with EFAULT
// (arch/x86/kernel/fpu/regset.c, xstateregs_set), while PTRACE_GETREGSET fills the caller's buffer,
// whatever its size. User-Mode Linux reads the first part of the area, sets only this part, and
// panics. So this library reads the whole area, replaces its first part by the caller's data, and
// sets the whole area.

#define _GNU_SOURCE
#include <elf.h>
#include <stdarg.h>
#include <stdint.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

// Larger than any current area: with AMX it has 11,008 bytes.
enum { AREA_BYTES = 1 << 16 };

static long set_xstate(pid_t pid, struct iovec *part)
{
    static __thread char area[AREA_BYTES] __attribute__((aligned(64)));
    struct iovec whole = { .iov_base = area, .iov_len = sizeof area };
    void *kind = (void *)(uintptr_t)NT_X86_XSTATE;
    if (syscall(SYS_ptrace, PTRACE_GETREGSET, pid, kind, &whole) != 0)
        return -1;
    if (part->iov_len >= whole.iov_len)
        return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, kind, part);
    memcpy(area, part->iov_base, part->iov_len);
    return syscall(SYS_ptrace, PTRACE_SETREGSET, pid, kind, &whole);
}

long ptrace(enum __ptrace_request request, ...)
{
    va_list args;
    va_start(args, request);
    pid_t pid = va_arg(args, pid_t);
    void *address = va_arg(args, void *);
    void *data = va_arg(args, void *);
    va_end(args);
    switch ((int)request) {
    case PTRACE_PEEKTEXT:
    case PTRACE_PEEKDATA:
    case PTRACE_PEEKUSER: {
        // The system call writes the word to memory; the C library's function returns it.
        long word = -1;
        long failed = syscall(SYS_ptrace, request, pid, address, &word);
        return failed ? failed : word;
    }
    case PTRACE_SETREGSET:
        if ((uintptr_t)address == NT_X86_XSTATE)
            return set_xstate(pid, data);
        break;
    }
    return syscall(SYS_ptrace, request, pid, address, data);
}
