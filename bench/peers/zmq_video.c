/* The libzmq contestant of the pipeline of `samite bench video` (see video.h), over ipc.
 *
 * The driver starts each process and names it by SAMITE_BENCH_RANK. SAMITE_BENCH_VIDEO says how a frame
 * comes to a worker:
 *   request N  the worker asks for it (REQ, and REP at the source), and has asked for N - 1 more while it
 *              computes one
 *   push N     the source pushes it to the next worker whose queues, of N frames at each end, have room
 *              (PUSH, and PULL at the worker)
 * In both, the worker pushes its results to the sink, with the high-water mark N, or 10 with requests.
 */
#include "zmq_peer.h"
#include "video.h"
#include <stdatomic.h>

/* Before each frame. */
struct head {
    int64_t number; /* END after the last one */
    int64_t worker;
};

enum { END = -1, SPARES = 64, MOST_AHEAD = 4 };

static int rank, ranks, mark, ahead; /* `ahead`: requests of a worker; 0 where frames are pushed */
static void *frames, *results, *done; /* sockets; `done` is from the sink to the source */
static void *asking[MOST_AHEAD];      /* of a worker: a socket has one request at a time */

static void *open_socket(void *context, int type, const char *dir, const char *name, int number, int is_server)
{
    char address[4096];
    snprintf(address, sizeof address, "ipc://%s/%s.%d", dir, name, number);
    void *sock = zmq_socket(context, type);
    if (!sock)
        die("zmq_socket");
    set_option(sock, ZMQ_LINGER, 0);
    set_option(sock, ZMQ_SNDHWM, mark);
    set_option(sock, ZMQ_RCVHWM, mark);
    set_option(sock, ZMQ_RECONNECT_IVL, 5);
    if (is_server ? zmq_bind(sock, address) : zmq_connect(sock, address))
        die(address);
    return sock;
}

static void connect_to(void *sock, const char *dir, const char *name, int number)
{
    char address[4096];
    snprintf(address, sizeof address, "ipc://%s/%s.%d", dir, name, number);
    if (zmq_connect(sock, address))
        die(address);
}

static void open_sockets(void *context, const char *dir)
{
    int sink = ranks - 1;
    if (rank == 0 && ahead)
        frames = open_socket(context, ZMQ_REP, dir, "frames", 0, 1);
    else if (rank == 0) {
        /* It connects to all workers at once, so that each has its turn from the first frame on. */
        frames = open_socket(context, ZMQ_PUSH, dir, "frames", 1, 0);
        for (int w = 2; w < sink; w++)
            connect_to(frames, dir, "frames", w);
    } else if (rank < sink && !ahead)
        asking[0] = open_socket(context, ZMQ_PULL, dir, "frames", rank, 1);
    for (int a = 0; rank && rank < sink && a < ahead; a++)
        asking[a] = open_socket(context, ZMQ_REQ, dir, "frames", 0, 0);
    if (rank == 0)
        done = open_socket(context, ZMQ_PULL, dir, "done", 0, 1);
    else
        results = open_socket(context, rank == sink ? ZMQ_PULL : ZMQ_PUSH, dir, "results", 0, rank == sink);
    if (rank == sink)
        done = open_socket(context, ZMQ_PUSH, dir, "done", 0, 0);
}

static void say(void *sock, const void *bytes, size_t count, int flags)
{
    if (zmq_send(sock, bytes, count, flags) != (int)count)
        die("zmq_send");
}

static void hear(void *sock, void *bytes, size_t count)
{
    if (zmq_recv(sock, bytes, count, 0) != (int)count)
        die("zmq_recv");
}

/* Rank 0 learns that all others are there. */
static void meet(void)
{
    char byte = 0;
    if (rank == 0)
        hear(done, &byte, 1);
    else if (rank < ranks - 1)
        say(results, &byte, 1, 0);
    else {
        for (int w = 1; w < ranks - 1; w++)
            hear(results, &byte, 1);
        say(done, &byte, 1, 0);
    }
}

static void send_frame(void *sock, struct head head, unsigned char *frame, size_t bytes, zmq_free_fn *release,
                       void *hint)
{
    say(sock, &head, sizeof head, ZMQ_SNDMORE);
    say_in_place(sock, frame, bytes, release, hint);
}

static void await_request(void)
{
    char byte;
    if (ahead)
        hear(frames, &byte, 1);
}

static void source(const struct video *v, unsigned char *ring, struct outcome *o)
{
    for (long i = 0; i < v->frames; i++) {
        await_request();
        send_frame(frames, (struct head) { i, 0 }, ring + (size_t)(i % RING) * v->bytes, v->bytes, keep, NULL);
    }
    hear(done, o, sizeof *o);
    /* All queues are empty, so each worker gets one. */
    for (long i = 0; i < v->workers * (ahead ? ahead : 1); i++) {
        await_request();
        send_frame(frames, (struct head) { END, 0 }, ring, 0, keep, NULL);
    }
}

/* Memory of results: another thread says that one has left. */
static struct {
    unsigned char *bytes;
    atomic_int is_taken;
} spare[SPARES];

static void release(void *bytes, void *which)
{
    (void)bytes;
    atomic_store((atomic_int *)which, 0);
}

static int take_spare(size_t bytes)
{
    for (int at = 0;; at = (at + 1) % SPARES)
        if (!atomic_load(&spare[at].is_taken)) {
            if (!spare[at].bytes)
                spare[at].bytes = take_huge_pages(bytes);
            atomic_store(&spare[at].is_taken, 1);
            return at;
        }
}

static void worker(const struct video *v)
{
    struct head head;
    zmq_msg_t frame;
    char byte = 0;
    int sockets = ahead ? ahead : 1;
    for (int a = 0; a < ahead; a++)
        say(asking[a], &byte, 1, 0);
    for (int turn = 0, ends = 0; ends < sockets; turn = (turn + 1) % sockets) {
        hear(asking[turn], &head, sizeof head);
        size_t bytes = hear_in_place(asking[turn], &frame);
        if (head.number == END) {
            zmq_msg_close(&frame);
            ends++;
            continue;
        }
        if (bytes != v->bytes)
            die("a frame of another size");
        int out = take_spare(v->bytes);
        compute(v, zmq_msg_data(&frame), spare[out].bytes, v->times[rank - 1]);
        zmq_msg_close(&frame);
        head.worker = rank - 1;
        send_frame(results, head, spare[out].bytes, v->bytes, release, &spare[out].is_taken);
        if (ahead)
            say(asking[turn], &byte, 1, 0);
    }
}

/* When all results have arrived. */
static void free_spares(void)
{
    for (int at = 0; at < SPARES; at++) {
        while (atomic_load(&spare[at].is_taken))
            sched_yield();
        free(spare[at].bytes);
        spare[at].bytes = NULL;
    }
}

static void sink(const struct video *v)
{
    static zmq_msg_t early[LATE];
    static char is_here[LATE];
    struct outcome o = {0};
    long turn = 0;
    for (long received = 0; received < v->frames; received++) {
        struct head head;
        hear(results, &head, sizeof head);
        long at = head.number % LATE;
        if (hear_in_place(results, &early[at]) != v->bytes || head.worker < 0 || head.worker >= v->workers)
            die("a result of another size");
        o.counts[head.worker]++;
        for (is_here[at] = 1; is_here[at = turn % LATE]; turn++) {
            o.checksum = chain(o.checksum, hash(zmq_msg_data(&early[at]), v->bytes));
            zmq_msg_close(&early[at]);
            is_here[at] = 0;
        }
    }
    o.end = now();
    say(done, &o, sizeof o, 0);
}

/* Rank 0 returns the seconds. */
static double pipeline(const struct video *v, int *good)
{
    struct outcome o = {0};
    double wall = 0;
    if (rank == 0) {
        unsigned char *ring = make_ring(v);
        uint64_t expected = sequential(v, ring);
        double start = now();
        source(v, ring, &o);
        wall = o.end - start;
        *good = o.checksum == expected;
        remember(v, wall, deviation_of(v, &o));
        meet();
        free(ring);
        return wall;
    }
    if (rank == ranks - 1)
        sink(v);
    else {
        worker(v);
        free_spares();
    }
    remember(v, 0, 0);
    meet();
    return 0;
}

int main(int argc, char **argv)
{
    const char *text = getenv("SAMITE_BENCH_RANK"), *count = getenv("SAMITE_BENCH_RANKS");
    const char *way = getenv("SAMITE_BENCH_VIDEO");
    if (argc != 2 || !text || !count || !way) {
        fprintf(stderr, "usage: SAMITE_BENCH_{RANK,RANKS,VIDEO}=... %s CONTROL_FOLDER\n", argv[0]);
        return 2;
    }
    rank = atoi(text);
    ranks = atoi(count);
    mark = 10;
    if (sscanf(way, "request %d", &ahead) != 1 && sscanf(way, "push %d", &mark) != 1)
        die("SAMITE_BENCH_VIDEO");
    ahead = ahead > MOST_AHEAD ? MOST_AHEAD : ahead;
    die_with_parent();
    keep_memory();
    void *context = zmq_ctx_new();
    open_sockets(context, argv[1]);
    pin(rank);
    struct control c = control_open(argv[1], rank);
    meet();
    answer(&c, "ready");
    for (struct command k; next_command(&c, &k);) {
        struct video v;
        if (strcmp(k.name, "video") || !is_figure(k.what)) {
            answer(&c, "unsupported");
            continue;
        }
        if (!video_of(&k, ranks - 2, &v)) {
            answer(&c, "error the command has not as many times as there are workers");
            continue;
        }
        int good = 1;
        double wall = -1;
        if (!strcmp(k.what, "wall") || !is_past(&v))
            wall = pipeline(&v, &good);
        if (good)
            answer_number(&c, figure_of(k.what, &v, wall));
        else
            answer(&c, "error the checksum is not that of a sequential run");
    }
    return 0;
}
