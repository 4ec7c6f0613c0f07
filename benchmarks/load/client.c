/* Sends ready-made HTTP requests from a file over kept-alive connections to a port of this machine, and measures.

   client PORT CONNECTIONS SECONDS RATE FILE

   FILE holds requests, each after its length (4 bytes, little-endian); each is sent once, so that every delivery is another
   one. RATE 0 is the closed loop: a connection sends the next request when it has the answer to the last. Another RATE is
   the open loop: so many requests per second are due, whether or not answers come, and the time of a request counts from
   the moment when it was due, so that a server that stalls cannot hide it. One thread; it ends after SECONDS, or when the
   file is used up, and prints one line of JSON. */

#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

#define LARGEST 65536
#define MOST 1024

struct connection { int fd, busy; size_t got; double since; char answer[LARGEST]; };

static struct connection all[MOST];
static int waiting[MOST], idle, port, loop;
static const unsigned char *next_request, *end_of_requests;
static uint32_t *times;
static size_t done, refused, failed, sent;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

static void fail(const char *what) { perror(what); exit(1); }

static void open_connection(int n) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int on = 1, fd = socket(AF_INET, SOCK_STREAM, 0);
    if (fd < 0) fail("socket");
    if (connect(fd, (struct sockaddr *)&to, sizeof to)) fail("connect");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    fcntl(fd, F_SETFL, O_NONBLOCK);
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = n};
    if (epoll_ctl(loop, EPOLL_CTL_ADD, fd, &e)) fail("epoll_ctl");
    all[n] = (struct connection){.fd = fd};
    waiting[idle++] = n;
}

static int left(void) { return next_request + 4 <= end_of_requests; }

static void send_next(int n, double since) {
    uint32_t size;
    memcpy(&size, next_request, 4);
    next_request += 4;
    for (size_t put = 0; put < size;) {
        ssize_t k = send(all[n].fd, next_request + put, size - put, MSG_NOSIGNAL);
        if (k >= 0) put += k;
        else if (errno != EAGAIN) break; /* the answer, or its absence, will tell */
    }
    next_request += size;
    all[n].busy = 1, all[n].got = 0, all[n].since = since, sent++;
}

/* 1: a whole answer is there; 0: not yet; -1: it is none. */
static int answered(struct connection *c, int *good, int *closing) {
    c->answer[c->got] = 0;
    char *body = strstr(c->answer, "\r\n\r\n");
    if (!body) return c->got >= LARGEST - 1 ? -1 : 0;
    size_t length = 0;
    *closing = 0;
    for (char *line = strchr(c->answer, '\n'); line && line < body; line = strchr(line + 1, '\n')) {
        if (!strncasecmp(line + 1, "content-length:", 15)) length = strtoul(line + 16, NULL, 10);
        if (!strncasecmp(line + 1, "connection: close", 17)) *closing = 1;
        if (!strncasecmp(line + 1, "transfer-encoding:", 18)) /* ends with an empty chunk */
            return c->got >= 5 && !memcmp(c->answer + c->got - 5, "0\r\n\r\n", 5) ? (*good = c->answer[9] == '2', 1) : 0;
    }
    *good = c->answer[9] == '2';
    return c->got >= (size_t)(body + 4 - c->answer) + length;
}

static void reopen(int n) {
    close(all[n].fd);
    open_connection(n);
}

static void receive(int n) {
    struct connection *c = &all[n];
    ssize_t k = recv(c->fd, c->answer + c->got, LARGEST - 1 - c->got, 0);
    if (k < 0 && errno == EAGAIN) return;
    if (k <= 0) {
        if (c->busy) failed++;
        else for (int i = 0; i < idle; i++) if (waiting[i] == n) { waiting[i] = waiting[--idle]; break; }
        reopen(n);
        return;
    }
    c->got += k;
    int good = 0, closing = 0, is = answered(c, &good, &closing);
    if (!is) return;
    if (is < 0 || !good) refused++;
    else times[done++] = (uint32_t)((now() - c->since) * 1e6);
    c->busy = 0;
    if (closing || is < 0) reopen(n);
    else waiting[idle++] = n;
}

static int by_time(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static double at(double share) { return done ? times[(size_t)(share * (done - 1))] / 1000.0 : 0; }

int main(int argc, char **argv) {
    if (argc != 6) return fprintf(stderr, "client PORT CONNECTIONS SECONDS RATE FILE\n"), 2;
    port = atoi(argv[1]);
    int connections = atoi(argv[2]);
    double seconds = atof(argv[3]), rate = atof(argv[4]);
    if (connections < 1 || connections > MOST || seconds > 3600) return fprintf(stderr, "too many\n"), 2;
    int fd = open(argv[5], O_RDONLY);
    struct stat about;
    if (fd < 0 || fstat(fd, &about)) fail(argv[5]);
    next_request = mmap(NULL, about.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    if (next_request == MAP_FAILED) fail("mmap");
    end_of_requests = next_request + about.st_size;
    times = calloc(about.st_size / 5 + 1, sizeof *times);
    loop = epoll_create1(0);
    for (int n = 0; n < connections; n++) open_connection(n);

    int clock = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK);
    struct itimerspec every = {{0, 200000}, {0, 200000}};
    struct epoll_event e = {.events = EPOLLIN, .data.u32 = MOST};
    if (rate > 0) {
        timerfd_settime(clock, 0, &every, NULL);
        epoll_ctl(loop, EPOLL_CTL_ADD, clock, &e);
    }
    double start = now(), stop = start + seconds;
    size_t due = 0;
    for (int more = 1;;) {
        double t = now();
        if (t >= stop) more = 0;
        while (more && idle && (rate <= 0 || start + due / rate <= t)) {
            more = left();
            if (more) send_next(waiting[--idle], rate > 0 ? start + due++ / rate : now());
        }
        if (!more && idle == connections) break;
        if (t > stop + 30) break;
        struct epoll_event ready[MOST];
        int found = epoll_wait(loop, ready, MOST, 100);
        for (int i = 0; i < found; i++) {
            uint64_t ticks;
            if (ready[i].data.u32 != MOST) receive(ready[i].data.u32);
            else if (read(clock, &ticks, 8) < 0 && errno != EAGAIN) fail("timerfd");
        }
    }
    double took = now() - start;
    struct rusage own;
    getrusage(RUSAGE_SELF, &own);
    qsort(times, done, sizeof *times, by_time);
    printf("{\"sent\": %zu, \"done\": %zu, \"refused\": %zu, \"failed\": %zu, \"seconds\": %.4f, \"p50\": %.3f, \"p99\": %.3f, "
           "\"p999\": %.3f, \"worst\": %.3f, \"cpu\": %.4f}\n",
           sent, done, refused, failed, took, at(0.5), at(0.99), at(0.999), at(1.0),
           own.ru_utime.tv_sec + own.ru_stime.tv_sec + (own.ru_utime.tv_usec + own.ru_stime.tv_usec) / 1e6);
    return 0;
}
