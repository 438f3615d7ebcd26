/* The clock of one part, set from outside: what a process and its children are told of the time of day is so many
   seconds off as the file says that PROCESSION_CLOCK names. Monotonic clocks and waits are left alone: they do not jump.
   Loaded before the C library by `chaos/clock_control`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static int (*original)(clockid_t, struct timespec *);
static volatile const int64_t *shift_s;

__attribute__((constructor)) static void begin(void) {
    original = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("PROCESSION_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0) return;
    void *at = mmap(0, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (at != MAP_FAILED) shift_s = at;
    close(file);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int status = original ? original(id, at) : (int)syscall(SYS_clock_gettime, id, at);
    if (!status && shift_s && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) at->tv_sec += *shift_s;
    return status;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = (struct timeval){.tv_sec = now.tv_sec, .tv_usec = now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *to) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to) *to = now.tv_sec;
    return now.tv_sec;
}
