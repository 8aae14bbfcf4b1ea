/* io_private.h - what the io_*.c files share; not for other folders. */
#ifndef BASE_IO_PRIVATE_H
#define BASE_IO_PRIVATE_H

#include <stdbool.h>
#include <sys/types.h>

/* open() with O_CLOEXEC, retried on EINTR, never returning 0, 1 or 2; -1 with errno on failure. */
int io_open_high(const char *path, int flags, mode_t mode);
/* After a failed read or write: true when the call should be repeated (EINTR, or EAGAIN after waiting
 * until fd is ready); otherwise false with errno as it was. */
bool io_wait_ready(int fd, short events);
/* The folder part of path, malloc'ed; "." when there is none; NULL when out of memory. */
char *io_folder_of(const char *path);

#endif
