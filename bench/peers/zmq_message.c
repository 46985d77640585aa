/* The libzmq contestant: two processes, a PAIR of sockets over ipc.
 *
 * The driver starts both and names each by SAMITE_BENCH_RANK. Rank 0 binds the
 * socket in the control folder.
 */
#include "peer.h"
#include <zmq.h>

static int rank;
static void *sock;

static void say(const void *p, size_t bytes)
{
    if (zmq_send(sock, p, bytes, 0) != (int)bytes)
        die("zmq_send");
}

static void hear(void *p, size_t bytes)
{
    if (zmq_recv(sock, p, bytes, 0) != (int)bytes)
        die("zmq_recv");
}

static void ping_pong(unsigned char *out, unsigned char *in, size_t bytes, long rounds)
{
    for (long i = 0; i < rounds; i++) {
        if (rank == 0) {
            say(out, bytes);
            hear(in, bytes);
        } else {
            hear(in, bytes);
            say(out, bytes);
        }
    }
}

static void meet(void)
{
    unsigned char out = 1, in = 0;
    ping_pong(&out, &in, 1, 1);
}

/* Rank 0 learns whether both found their data whole. */
static int both_intact(int mine)
{
    int other = mine;
    if (rank == 1)
        say(&mine, sizeof mine);
    else
        hear(&other, sizeof other);
    return mine && other;
}

static double rounds(const struct command *k, int *good)
{
    size_t bytes = (size_t)k->bytes;
    unsigned char *out = take_pages(bytes), *in = take_pages(bytes);
    ping_pong(out, in, bytes, k->warmup);
    meet();
    double start = now();
    ping_pong(out, in, bytes, k->iters);
    double elapsed = now() - start;
    fill(out, bytes, (unsigned)rank);
    memset(in, 0, bytes);
    ping_pong(out, in, bytes, 1);
    *good = both_intact(intact(in, bytes, (unsigned)(1 - rank)));
    free(out);
    free(in);
    return elapsed;
}

static void windows(unsigned char *slots, const struct command *k, long count)
{
    int ack = 0;
    size_t bytes = (size_t)k->bytes;
    for (long i = 0; i < count; i++) {
        for (long w = 0; w < k->window; w++) {
            if (rank == 0)
                say(slots + (size_t)w * bytes, bytes);
            else
                hear(slots + (size_t)w * bytes, bytes);
        }
        if (rank == 0)
            hear(&ack, sizeof ack);
        else
            say(&ack, sizeof ack);
    }
}

static double window_rounds(const struct command *k, int *good)
{
    size_t size = (size_t)k->bytes * (size_t)k->window;
    unsigned char *slots = take_pages(size);
    if (rank == 0)
        fill(slots, size, 0);
    windows(slots, k, k->warmup);
    meet();
    double start = now();
    windows(slots, k, k->iters);
    double elapsed = now() - start;
    *good = both_intact(intact(slots, size, 0));
    free(slots);
    return elapsed;
}

static int known(const struct command *k)
{
    return !strcmp(k->name, "latency") || !strcmp(k->name, "rate")
        || (!strcmp(k->name, "bandwidth") && !strcmp(k->kind, "malloc"));
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
    char address[4096];
    snprintf(address, sizeof address, "ipc://%s/zmq", argv[1]);
    /* Before this process is pinned: the first socket starts the thread for IO, which may run
     * wherever there is room. */
    void *context = zmq_ctx_new();
    sock = zmq_socket(context, ZMQ_PAIR);
    pin(rank);
    int linger = 0;
    zmq_setsockopt(sock, ZMQ_LINGER, &linger, sizeof linger);
    if (rank == 0 ? zmq_bind(sock, address) : zmq_connect(sock, address))
        die(address);
    struct control c = control_open(argv[1], rank);
    meet();
    answer(&c, "ready");
    for (struct command k; next_command(&c, &k);) {
        if (!known(&k)) {
            answer(&c, "unsupported");
            continue;
        }
        int good = 1;
        double value = strcmp(k.name, "rate") ? rounds(&k, &good) : window_rounds(&k, &good);
        if (good)
            answer_number(&c, value);
        else
            answer(&c, "error the data that arrived is not the data that was sent");
    }
    zmq_close(sock);
    zmq_ctx_term(context);
    return 0;
}
