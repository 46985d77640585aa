/* The Redis contestant of `samite bench staging`: a server that rank 0 starts, and two clients of it.
 *
 * The clients speak the protocol over the server's Unix socket themselves: a value goes from the user's
 * array into the socket and from the socket into the user's array, without the copies that a client
 * library makes. The server keeps everything in memory and writes nothing to disk.
 */
#include "staging.h"
#include <sys/socket.h>
#include <sys/uio.h>
#include <sys/un.h>

static int sock;
static int server; /* known to rank 0 */

static void start_server(const char *folder)
{
    pid_t parent = getpid();
    server = fork();
    if (server < 0)
        die("fork");
    if (server)
        return;
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
static void connect_to_server(const char *folder)
{
    struct sockaddr_un address = { .sun_family = AF_UNIX };
    struct timespec moment = { 0, 2000000 };
    snprintf(address.sun_path, sizeof address.sun_path, "%s/redis", folder);
    for (int tries = 0; tries < 5000; tries++) {
        if ((sock = socket(AF_UNIX, SOCK_STREAM, 0)) < 0)
            die("socket");
        if (!connect(sock, (struct sockaddr *)&address, sizeof address))
            return;
        close(sock);
        nanosleep(&moment, NULL);
    }
    die("redis-server does not listen");
}

static void send_all(struct iovec *parts, int count)
{
    while (count > 0) {
        ssize_t sent = writev(sock, parts, count);
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

static void receive(void *to, size_t bytes)
{
    for (char *at = to; bytes > 0;) {
        ssize_t got = recv(sock, at, bytes, MSG_WAITALL);
        if (got <= 0)
            die("recv");
        at += got;
        bytes -= (size_t)got;
    }
}

static void receive_line(char *line, size_t size)
{
    size_t n = 0;
    do {
        receive(line + n, 1);
    } while (line[n++] != '\n' && n < size - 1);
    line[n] = 0;
}

static void set(const void *value, size_t bytes)
{
    char head[64], line[128];
    int length = snprintf(head, sizeof head, "*3\r\n$3\r\nSET\r\n$4\r\nstep\r\n$%zu\r\n", bytes);
    struct iovec parts[] = { { head, (size_t)length }, { (void *)value, bytes }, { "\r\n", 2 } };
    send_all(parts, 3);
    receive_line(line, sizeof line);
    if (strcmp(line, "+OK\r\n")) {
        fprintf(stderr, "redis-server said %s\n", line);
        exit(1);
    }
}

static void get(void *value, size_t bytes)
{
    char line[128];
    struct iovec request = { "*2\r\n$3\r\nGET\r\n$4\r\nstep\r\n", 23 };
    send_all(&request, 1);
    receive_line(line, sizeof line);
    if (line[0] != '$' || strtoul(line + 1, NULL, 10) != bytes) {
        fprintf(stderr, "redis-server said %s\n", line);
        exit(1);
    }
    receive(value, bytes);
    receive(line, 2);
}

static void say(const char *words, const char *expected)
{
    char line[128];
    struct iovec request = { (void *)words, strlen(words) };
    send_all(&request, 1);
    receive_line(line, sizeof line);
    if (line[0] != expected[0]) {
        fprintf(stderr, "redis-server said %s\n", line);
        exit(1);
    }
}

/* What an earlier command left in the server is not this one's. */
static void forget(void)
{
    say("*2\r\n$3\r\nDEL\r\n$4\r\nstep\r\n", ":");
    say("*2\r\n$6\r\nMEMORY\r\n$5\r\nPURGE\r\n", "+");
}

/* Rank 0 sets a value, then rank 1 gets it. */
static void hand_on(unsigned char *value, size_t bytes, long count)
{
    for (long i = 0; i < count; i++) {
        if (rank == 0)
            set(value, bytes);
        meet(0);
        if (rank == 1)
            get(value, bytes);
        meet(0);
    }
}

static double run(const struct command *k, int is_memory, int *good)
{
    size_t bytes = (size_t)k->bytes;
    if (is_memory && rank == 0)
        forget();
    double before = is_memory ? watch_begin(server) : 0;
    unsigned char *value = take_pages(bytes);
    hand_on(value, bytes, k->warmup);
    double start = now();
    hand_on(value, bytes, k->iters);
    double result = now() - start;
    if (is_memory)
        result = watch_end() - before;
    if (rank == 0)
        fill(value, bytes, 1);
    hand_on(value, bytes, 1);
    int mine = intact(value, bytes, 1);
    *good = mine & (int)meet(mine);
    free(value);
    return result;
}

int main(int argc, char **argv)
{
    const char *text = getenv("SAMITE_BENCH_RANK");
    if (argc != 2 || !text) {
        fprintf(stderr, "usage: SAMITE_BENCH_RANK=0|1 %s CONTROL_FOLDER\n", argv[0]);
        return 2;
    }
    rank = atoi(text);
    die_with_parent();
    /* Before this process is pinned: the server may run wherever there is room. */
    if (rank == 0)
        start_server(argv[1]);
    pin(rank);
    acquaint(argv[1]);
    connect_to_server(argv[1]);
    struct control c = control_open(argv[1], rank);
    meet(0);
    answer(&c, "ready");
    for (struct command k; next_command(&c, &k);) {
        int is_memory = !strcmp(k.name, "peak"), good;
        if (!is_memory && strcmp(k.name, "store")) {
            answer(&c, "unsupported");
            continue;
        }
        double value = run(&k, is_memory, &good);
        if (good)
            answer_number(&c, value);
        else
            answer(&c, "error the value that was got is not the value that was set");
    }
    if (server)
        kill(server, SIGKILL);
    return 0;
}
