/* The libzmq contestant: two processes, a PAIR of sockets over ipc.
 *
 * The driver starts both and names each by SAMITE_BENCH_RANK. Rank 0 binds the
 * socket in the control folder. SAMITE_BENCH_ZMQ may have other settings than the
 * library's: the threads for IO, and the bytes of the buffers of a socket of the
 * system.
 */
#include "zmq_peer.h"

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

/* Frames from memory of rank 0 to rank 1 and back, two on the way, without copies by the user. The
 * kernel does nothing; `whole`: it copies, and rank 0 compares. */
static int frames(unsigned char *own, size_t bytes, long count, int whole)
{
    enum { SLOTS = 2 };
    int good = 1;
    long begun = 0;
    for (long i = 0; i < count; i++) {
        for (; rank == 0 && begun < count && begun < i + SLOTS; begun++) {
            unsigned char *frame = own + (size_t)(begun % SLOTS) * bytes;
            memcpy(frame, &begun, sizeof begun);
            say_in_place(sock, frame, bytes, keep, NULL);
        }
        zmq_msg_t message;
        if (hear_in_place(sock, &message) != bytes)
            give_up("a frame of another size");
        unsigned char *in = zmq_msg_data(&message), *out = own + (size_t)(i % SLOTS) * bytes;
        if (rank == 0) {
            good &= !memcmp(in, &i, sizeof i);
            good &= !whole || intact(in + sizeof i, bytes - sizeof i, 0);
        } else {
            memcpy(out, in, whole ? bytes : sizeof i);
            say_in_place(sock, out, bytes, keep, NULL);
        }
        zmq_msg_close(&message);
    }
    return good;
}

static double frame_rounds(const struct command *k, int *good)
{
    size_t bytes = (size_t)k->bytes;
    unsigned char *own = take_huge_pages(2 * bytes);
    for (int slot = 0; slot < 2; slot++)
        fill(own + (size_t)slot * bytes + sizeof(long), bytes - sizeof(long), 0);
    int mine = frames(own, bytes, k->warmup, 0);
    meet();
    double start = now();
    mine &= frames(own, bytes, k->iters, 0);
    double elapsed = now() - start;
    mine &= frames(own, bytes, 2, 1);
    *good = both_intact(mine);
    meet(); /* the last frame has left */
    free(own);
    return elapsed;
}

static int known(const struct command *k)
{
    return !strcmp(k->name, "latency") || !strcmp(k->name, "frames") || !strcmp(k->name, "rate")
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
    const char *settings = getenv("SAMITE_BENCH_ZMQ");
    int threads = 1, buffer = 0;
    if (settings && sscanf(settings, "%d %d", &threads, &buffer) != 2)
        die("SAMITE_BENCH_ZMQ");
    keep_memory();
    void *context = zmq_ctx_new();
    zmq_ctx_set(context, ZMQ_IO_THREADS, threads);
    sock = zmq_socket(context, ZMQ_PAIR);
    pin(rank);
    set_option(sock, ZMQ_LINGER, 0);
    if (buffer) {
        set_option(sock, ZMQ_SNDBUF, buffer);
        set_option(sock, ZMQ_RCVBUF, buffer);
    }
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
        double value = !strcmp(k.name, "frames") ? frame_rounds(&k, &good)
                     : !strcmp(k.name, "rate") ? window_rounds(&k, &good) : rounds(&k, &good);
        if (good)
            answer_number(&c, value);
        else
            answer(&c, "error the data that arrived is not the data that was sent");
    }
    zmq_close(sock);
    zmq_ctx_term(context);
    return 0;
}
