/* What the Redis peers of the benches share: a server that rank 0 starts, and a client of it.
 *
 * The client speaks the protocol over the server's Unix socket itself: a value goes from the user's
 * array into the socket and from the socket into the user's array, without the copies that a client
 * library makes. The server keeps everything in memory and writes nothing to disk.
 *
 * Settings, in the variable SAMITE_BENCH_REDIS: with `looks`, a client that waits looks for a while, and
 * leaves the processor to others in between, before it sleeps; with `buffers`, its socket has room for a
 * value of 1 MiB.
 */
#ifndef SAMITE_BENCH_REDIS_H
#define SAMITE_BENCH_REDIS_H

#include "peer.h"
#include <errno.h>
#include <sched.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

/* How long a client looks, in seconds. */
static const double LOOKS = 250e-6;

static inline int has_setting(const char *name)
{
    const char *settings = getenv("SAMITE_BENCH_REDIS");
    return settings && strstr(settings, name);
}

/* Receives at least a byte, or as many as there are room for with MSG_WAITALL. */
static inline size_t receive(int fd, void *to, size_t bytes, int flags)
{
    static int looks = -1;
    if (looks < 0)
        looks = has_setting("looks");
    if (looks) {
        for (double start = now(); now() - start < LOOKS;) {
            ssize_t got = recv(fd, to, bytes, MSG_DONTWAIT);
            if (got > 0)
                return (size_t)got;
            if (got == 0 || (errno != EAGAIN && errno != EWOULDBLOCK))
                break;
            sched_yield();
        }
    }
    ssize_t got = recv(fd, to, bytes, flags);
    if (got < 0)
        die("recv");
    if (got == 0)
        give_up("redis-server has closed the connection");
    return (size_t)got;
}

/* A connection, with what has arrived and was not taken yet. */
struct link {
    int fd;
    size_t begin, end;
    char bytes[16384];
};

/* Returns its process. */
static inline int start_server(const char *folder)
{
    pid_t parent = getpid();
    int server = fork();
    if (server < 0)
        die("fork");
    if (server)
        return server;
    die_with_parent();
    if (getppid() != parent)
        _exit(1);
    char path[4096];
    snprintf(path, sizeof path, "%s/redis", folder);
    execlp("redis-server", "redis-server", "--port", "0", "--unixsocket", path, "--save", "",
           "--appendonly", "no", "--dir", folder, "--daemonize", "no", (char *)NULL);
    perror("redis-server");
    _exit(1);
}

/* The server needs a moment until it listens. */
static inline void connect_to_server(struct link *l, const char *folder)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct timespec moment = { 0, 2000000 };
    int length = snprintf(address.sun_path, sizeof address.sun_path, "%s/redis", folder);
    if (length >= (int)sizeof address.sun_path)
        give_up("the path of the socket of redis-server is too long");
    l->begin = l->end = 0;
    for (int tries = 0; tries < 5000; tries++) {
        if ((l->fd = socket(AF_UNIX, SOCK_STREAM, 0)) < 0)
            die("socket");
        int room = 1 << 20;
        if (has_setting("buffers") && setsockopt(l->fd, SOL_SOCKET, SO_SNDBUF, &room, sizeof room))
            die("setsockopt");
        if (!connect(l->fd, (struct sockaddr *)&address, sizeof address))
            return;
        close(l->fd);
        nanosleep(&moment, NULL);
    }
    give_up("redis-server does not listen");
}

static inline void send_parts(struct link *l, struct iovec *parts, int count)
{
    while (count > 0) {
        ssize_t sent = writev(l->fd, parts, count);
        if (sent < 0)
            die("writev");
        for (; count > 0 && (size_t)sent >= parts->iov_len; parts++, count--)
            sent -= (ssize_t)parts->iov_len;
        if (count > 0) {
            parts->iov_base = (char *)parts->iov_base + sent;
            parts->iov_len -= (size_t)sent;
        }
    }
}

static inline void send_text(struct link *l, const char *text)
{
    struct iovec part = { (void *)text, strlen(text) };
    send_parts(l, &part, 1);
}

static inline void more(struct link *l)
{
    if (l->begin == l->end)
        l->begin = l->end = 0;
    if (l->end == sizeof l->bytes) {
        memmove(l->bytes, l->bytes + l->begin, l->end - l->begin);
        l->end -= l->begin;
        l->begin = 0;
    }
    l->end += receive(l->fd, l->bytes + l->end, sizeof l->bytes - l->end, 0);
}

/* Whether a whole line has arrived. */
static inline int has_line(const struct link *l)
{
    return memchr(l->bytes + l->begin, '\n', l->end - l->begin) != NULL;
}

/* The next line, without its end. It is valid until the next one is received. */
static inline const char *receive_line(struct link *l)
{
    for (size_t looked = 0;;) {
        char *begin = l->bytes + l->begin;
        char *end = memchr(begin + looked, '\n', l->end - l->begin - looked);
        if (end == begin)
            give_up("redis-server said a line without its return");
        if (end) {
            end[-1] = 0;
            l->begin = (size_t)(end + 1 - l->bytes);
            return begin;
        }
        looked = l->end - l->begin;
        if (looked >= 1024)
            give_up("redis-server said a line without an end");
        more(l);
    }
}

/* Takes bytes and the end of line after them. */
static inline void receive_bytes(struct link *l, void *to, size_t bytes)
{
    size_t here = l->end - l->begin < bytes ? l->end - l->begin : bytes;
    memcpy(to, l->bytes + l->begin, here);
    l->begin += here;
    for (char *at = (char *)to + here, *end = (char *)to + bytes; at < end;)
        at += receive(l->fd, at, (size_t)(end - at), MSG_WAITALL);
    while (l->end - l->begin < 2)
        more(l);
    l->begin += 2;
}

static inline void unexpected(const char *line)
{
    fprintf(stderr, "redis-server said %s\n", line);
    exit(1);
}

/* A reply that is one line, of this kind. */
static inline long receive_reply(struct link *l, char kind)
{
    const char *line = receive_line(l);
    if (line[0] != kind)
        unexpected(line);
    return strtol(line + 1, NULL, 10);
}

/* A reply that is a value of so many bytes. */
static inline void receive_value(struct link *l, void *to, size_t bytes)
{
    const char *line = receive_line(l);
    if (line[0] != '$' || strtoul(line + 1, NULL, 10) != bytes)
        unexpected(line);
    receive_bytes(l, to, bytes);
}

/* Sends a command whose last word is a value; `words` has those before it, as the protocol has them. */
static inline void send_value(struct link *l, const char *words, const void *value, size_t bytes)
{
    char length[32];
    int count = snprintf(length, sizeof length, "$%zu\r\n", bytes);
    struct iovec parts[] = {
        { (void *)words, strlen(words) }, { length, (size_t)count }, { (void *)value, bytes }, { "\r\n", 2 }
    };
    send_parts(l, parts, 4);
}

#endif
