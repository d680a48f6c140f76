/* AMX for CPUs without: its instructions trap as illegal ones, and are done here, in software.

   amx_trap(1) begins that for all threads, amx_trap(0) ends it; both give the number of
   instructions that were done. What the processor would refuse aborts. Encodings and operations
   are those of the Intel 64 and IA-32 Architectures Software Developer's Manual, volume 2. */
#define _GNU_SOURCE
#include <float.h>
#include <math.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64, PAIRS = ROW_BYTES / 4 };

static __thread struct {
  int palette;
  int rows[TILES], bytes[TILES];
  uint8_t data[TILES][ROWS][ROW_BYTES];
} state;

static _Atomic long done;
static struct sigaction before;

static const int REGISTERS[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP,
                                  REG_RSI, REG_RDI, REG_R8,  REG_R9,  REG_R10, REG_R11,
                                  REG_R12, REG_R13, REG_R14, REG_R15};

static void require(int condition, const char *what) {
  if (condition) return;
  fprintf(stderr, "amx_trap: %s\n", what);
  abort();
}

/* A memory operand, as ModRM and what follows it say. */
typedef struct {
  uint8_t *start;
  int64_t stride; /* of a tile: the index register */
  int length;     /* bytes of ModRM, SIB and displacement */
  int has_sib;
} Place;

static Place place_of(const greg_t *regs, const uint8_t *modrm, int x, int b) {
  int mod = modrm[0] >> 6, rm = modrm[0] & 7, base = rm | b << 3, wide = mod == 2;
  const uint8_t *next = modrm + 1;
  Place p = {0, 0, 0, rm == 4};
  if (p.has_sib) {
    int index = (next[0] >> 3 & 7) | x << 3;
    if (index != 4) p.stride = regs[REGISTERS[index]] << (next[0] >> 6);
    rm = next[0] & 7;
    base = rm | b << 3;
    next++;
  }
  int64_t start = regs[REGISTERS[base]];
  if (mod == 0 && rm == 5) { /* no base; without SIB from the end of the instruction */
    start = p.has_sib ? 0 : (int64_t)(next + 4);
    wide = 1;
  }
  int32_t offset = 0;
  if (wide) memcpy(&offset, next, 4), next += 4;
  if (mod == 1) offset = (int8_t)*next++;
  p.start = (uint8_t *)(start + offset);
  p.length = next - modrm;
  return p;
}

static void configure(const uint8_t *config) {
  memset(&state, 0, sizeof state);
  require(config[0] == 1 && config[1] == 0, "palette must be 1, start row 0");
  for (int i = 2; i < 64; i++) {
    int used = (i >= 16 && i < 16 + 2 * TILES) || (i >= 48 && i < 48 + TILES);
    require(used || !config[i], "a reserved byte of the configuration is not zero");
  }
  for (int t = 0; t < TILES; t++) {
    state.bytes[t] = config[16 + 2 * t] | config[17 + 2 * t] << 8;
    state.rows[t] = config[48 + t];
    require(state.bytes[t] <= ROW_BYTES && state.rows[t] <= ROWS, "a tile is too large");
    require(!state.bytes[t] == !state.rows[t], "a tile has rows or columns alone");
  }
  state.palette = 1;
}

static void require_tile(int t) {
  require(state.palette == 1 && t < TILES && state.rows[t], "a tile is not configured");
}

static void load(int t, Place p) {
  require_tile(t);
  memset(state.data[t], 0, sizeof state.data[t]);
  for (int r = 0; r < state.rows[t]; r++)
    memcpy(state.data[t][r], p.start + r * p.stride, state.bytes[t]);
}

static void store(int t, Place p) {
  require_tile(t);
  for (int r = 0; r < state.rows[t]; r++)
    memcpy(p.start + r * p.stride, state.data[t][r], state.bytes[t]);
}

static inline float flushed(float x) { return fabsf(x) < FLT_MIN ? copysignf(0, x) : x; }

/* Of each row the bfloat16 numbers at even places, then those at odd ones. */
static void numbers(int t, float x[ROWS][2][PAIRS]) {
  for (int r = 0; r < state.rows[t]; r++)
    for (int i = 0; i < state.bytes[t] / 4; i++) {
      uint32_t pair, lower, upper;
      memcpy(&pair, state.data[t][r] + 4 * i, 4);
      lower = pair << 16, upper = pair & 0xFFFF0000;
      memcpy(&x[r][0][i], &lower, 4);
      memcpy(&x[r][1][i], &upper, 4);
      x[r][0][i] = flushed(x[r][0][i]);
      x[r][1][i] = flushed(x[r][1][i]);
    }
}

static void multiply(int c, int a, int b) {
  float left[ROWS][2][PAIRS], right[ROWS][2][PAIRS] = {0};
  require_tile(a), require_tile(b), require_tile(c);
  require(a != b && b != c && a != c, "tdpbf16ps takes three tiles");
  require(state.rows[c] == state.rows[a] && state.bytes[c] == state.bytes[b] &&
              state.bytes[a] == 4 * state.rows[b] && state.bytes[c] % 4 == 0,
          "the tiles of a product do not fit");
  numbers(a, left), numbers(b, right);
  for (int m = 0; m < state.rows[c]; m++) {
    float half[2][PAIRS] = {0}, sums[PAIRS] = {0};
    for (int k = 0; k < state.rows[b]; k++)
      for (int h = 0; h < 2; h++)
        for (int n = 0; n < PAIRS; n++) /* what a narrow tile has not stays zero */
          half[h][n] = flushed(fmaf(left[m][h][k], right[k][h][n], half[h][n]));
    memcpy(sums, state.data[c][m], state.bytes[c]);
    for (int n = 0; n < PAIRS; n++)
      sums[n] = flushed(flushed(sums[n]) + flushed(half[0][n] + half[1][n]));
    memcpy(state.data[c][m], sums, state.bytes[c]);
  }
}

/* Does the instruction at `code`; its length, or 0 for one that is none of AMX. */
static int step(const greg_t *regs, const uint8_t *code) {
  /* VEX.128 of map 0F38 with W = 0: C4, R X B map, W vvvv L pp, opcode, ModRM. */
  if (code[0] != 0xC4 || (code[1] & 0x1F) != 2 || code[2] & 0x84) return 0;
  int x = !(code[1] & 0x40), b = !(code[1] & 0x20);
  int prefix = code[2] & 3, vvvv = ~code[2] >> 3 & 15, opcode = code[3];
  const uint8_t *modrm = code + 4;
  int reg = *modrm >> 3 & 7, rm = *modrm & 7, registers = *modrm >> 6 == 3;
  enum { NONE, P66, PF3, PF2 };
  if (opcode == 0x5C && prefix == PF3 && registers) {
    multiply(reg, rm, vvvv);
    return 5;
  }
  if (opcode == 0x49 && registers) {
    if (prefix == NONE && *modrm == 0xC0) {
      memset(&state, 0, sizeof state);
      return 5;
    }
    if (prefix != PF2 || rm) return 0;
    require_tile(reg);
    memset(state.data[reg], 0, sizeof state.data[reg]);
    return 5;
  }
  if (registers) return 0;
  Place p = place_of(regs, modrm, x, b);
  if (opcode == 0x49 && prefix == NONE && reg == 0)
    configure(p.start);
  else if (opcode == 0x4B && (prefix == PF2 || prefix == P66) && p.has_sib) /* P66: TILELOADDT1 */
    load(reg, p);
  else if (opcode == 0x4B && prefix == PF3 && p.has_sib)
    store(reg, p);
  else
    return 0;
  return 4 + p.length;
}

static void on_illegal(int signal, siginfo_t *info, void *context) {
  greg_t *regs = ((ucontext_t *)context)->uc_mcontext.gregs;
  int length = step(regs, (const uint8_t *)regs[REG_RIP]);
  (void)signal, (void)info;
  require(length, "an illegal instruction that is none of AMX");
  regs[REG_RIP] += length;
  done++;
}

long amx_trap(int begin) {
  struct sigaction action = {.sa_sigaction = on_illegal, .sa_flags = SA_SIGINFO | SA_NODEFER};
  require(!sigaction(SIGILL, begin ? &action : &before, begin ? &before : 0), "sigaction");
  return done;
}
