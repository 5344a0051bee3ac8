// Sets only the first part of a traced process's XSAVE area, as User-Mode Linux does on a CPU with
// AMX. Exits with 0 if the kernel accepts the part, which needs xstate.c, with 1 if the kernel
// refuses it, and with 2 if the check itself fails.

#define _GNU_SOURCE
#include <elf.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/ptrace.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

// The legacy area and the header (Intel SDM volume 1, 13.4): every CPU with XSAVE has more.
enum { PART_BYTES = 512 + 64 };

int main(void)
{
    pid_t child = fork();
    if (child == 0) {
        ptrace(PTRACE_TRACEME, 0, NULL, NULL);
        raise(SIGSTOP);
        _exit(0);
    }
    int status;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFSTOPPED(status)) {
        perror("cannot trace a process");
        return 2;
    }
    char part[PART_BYTES];
    struct iovec io = { .iov_base = part, .iov_len = sizeof part };
    int result = 2;
    if (ptrace(PTRACE_GETREGSET, child, (void *)NT_X86_XSTATE, &io) == 0) {
        int refused = ptrace(PTRACE_SETREGSET, child, (void *)NT_X86_XSTATE, &io) != 0;
        result = refused ? (errno == EFAULT ? 1 : 2) : 0;
    }
    if (result != 0)
        perror("ptrace");
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    return result;
}
