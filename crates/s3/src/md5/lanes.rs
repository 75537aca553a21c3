//! MD5 of several streams at once: one stream in each lane of a vector register.
//!
//! MD5 is a chain of dependent steps, so a core computes one stream at about 600 MB/s, however wide
//! the core is. The lanes of a vector compute 8 or 16 streams in the same time. Source of the idea:
//! md5-simd, which MinIO uses; algorithm: RFC 1321.

/// Bytes of an MD5 block.
pub(super) const BLOCK: usize = 64;
/// The most streams that one call advances.
pub(super) const LANES_MAX: usize = 16;
/// The state that every stream starts with.
pub(super) const INITIAL: [u32; 4] = [0x6745_2301, 0xefcd_ab89, 0x98ba_dcfe, 0x1032_5476];

/// A stream and the bytes by which to advance it.
pub(super) struct Job<'a> {
    /// The chaining value, replaced by the one after `data`.
    pub(super) state: &'a mut [u32; 4],
    /// A multiple of [`BLOCK`] bytes.
    pub(super) data: &'a [u8],
}

const K: [u32; 64] = {
    // floor(2^32 * abs(sin(i + 1))), RFC 1321, 3.4
    [
        0xd76aa478, 0xe8c7b756, 0x242070db, 0xc1bdceee, 0xf57c0faf, 0x4787c62a, 0xa8304613, 0xfd469501, 0x698098d8,
        0x8b44f7af, 0xffff5bb1, 0x895cd7be, 0x6b901122, 0xfd987193, 0xa679438e, 0x49b40821, 0xf61e2562, 0xc040b340,
        0x265e5a51, 0xe9b6c7aa, 0xd62f105d, 0x02441453, 0xd8a1e681, 0xe7d3fbc8, 0x21e1cde6, 0xc33707d6, 0xf4d50d87,
        0x455a14ed, 0xa9e3e905, 0xfcefa3f8, 0x676f02d9, 0x8d2a4c8a, 0xfffa3942, 0x8771f681, 0x6d9d6122, 0xfde5380c,
        0xa4beea44, 0x4bdecfa9, 0xf6bb4b60, 0xbebfbc70, 0x289b7ec6, 0xeaa127fa, 0xd4ef3085, 0x04881d05, 0xd9d4d039,
        0xe6db99e5, 0x1fa27cf8, 0xc4ac5665, 0xf4292244, 0x432aff97, 0xab9423a7, 0xfc93a039, 0x655b59c3, 0x8f0ccc92,
        0xffeff47d, 0x85845dd1, 0x6fa87e4f, 0xfe2ce6e0, 0xa3014314, 0x4e0811a1, 0xf7537e82, 0xbd3af235, 0x2ad7d2bb,
        0xeb86d391,
    ]
};

/// The operations of MD5 on any number of lanes.
trait Word: Copy {
    fn splat(value: u32) -> Self;
    fn add(self, other: Self) -> Self;
    fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self;
    /// (x & y) | (!x & z)
    fn choose(x: Self, y: Self, z: Self) -> Self;
    /// x ^ y ^ z
    fn parity(x: Self, y: Self, z: Self) -> Self;
    /// y ^ (x | !z)
    fn mix(x: Self, y: Self, z: Self) -> Self;
}

macro_rules! step {
    ($f:expr, $a:ident, $b:ident, $c:ident, $d:ident, $m:expr, $g:expr, $i:expr, $left:literal, $right:literal) => {
        $a = $b.add($a.add($f).add($m[$g].add(W::splat(K[$i]))).rotate::<$left, $right>());
    };
}

macro_rules! round {
    ($f:expr, $a:ident $b:ident $c:ident $d:ident, $m:ident, $i:expr, $mul:expr, $add:expr,
     $l0:literal $r0:literal $l1:literal $r1:literal $l2:literal $r2:literal $l3:literal $r3:literal) => {
        step!($f($b, $c, $d), $a, $b, $c, $d, $m, ($i * $mul + $add) % 16, $i, $l0, $r0);
        step!($f($a, $b, $c), $d, $a, $b, $c, $m, (($i + 1) * $mul + $add) % 16, $i + 1, $l1, $r1);
        step!($f($d, $a, $b), $c, $d, $a, $b, $m, (($i + 2) * $mul + $add) % 16, $i + 2, $l2, $r2);
        step!($f($c, $d, $a), $b, $c, $d, $a, $m, (($i + 3) * $mul + $add) % 16, $i + 3, $l3, $r3);
    };
}

#[inline(always)]
fn block<W: Word>(state: &mut [W; 4], m: &[W; 16]) {
    let [mut a, mut b, mut c, mut d] = *state;
    macro_rules! quarter {
        ($f:expr, $from:expr, $mul:expr, $add:expr, $($shift:literal)*) => {
            round!($f, a b c d, m, $from, $mul, $add, $($shift)*);
            round!($f, a b c d, m, $from + 4, $mul, $add, $($shift)*);
            round!($f, a b c d, m, $from + 8, $mul, $add, $($shift)*);
            round!($f, a b c d, m, $from + 12, $mul, $add, $($shift)*);
        };
    }
    quarter!(|x, y, z| W::choose(x, y, z), 0, 1, 0, 7 25 12 20 17 15 22 10);
    // The second round's function is the first round's with its arguments rotated.
    quarter!(|x, y, z| W::choose(z, x, y), 16, 5, 1, 5 27 9 23 14 18 20 12);
    quarter!(|x, y, z| W::parity(x, y, z), 32, 3, 5, 4 28 11 21 16 16 23 9);
    quarter!(|x, y, z| W::mix(x, y, z), 48, 7, 0, 6 26 10 22 15 17 21 11);
    *state = [state[0].add(a), state[1].add(b), state[2].add(c), state[3].add(d)];
}

impl Word for u32 {
    #[inline(always)]
    fn splat(value: u32) -> Self {
        value
    }
    #[inline(always)]
    fn add(self, other: Self) -> Self {
        self.wrapping_add(other)
    }
    #[inline(always)]
    fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
        self.rotate_left(LEFT as u32)
    }
    #[inline(always)]
    fn choose(x: Self, y: Self, z: Self) -> Self {
        z ^ (x & (y ^ z))
    }
    #[inline(always)]
    fn parity(x: Self, y: Self, z: Self) -> Self {
        x ^ y ^ z
    }
    #[inline(always)]
    fn mix(x: Self, y: Self, z: Self) -> Self {
        y ^ (x | !z)
    }
}

/// Advances one stream without vectors.
fn advance_scalar(state: &mut [u32; 4], data: &[u8]) {
    for bytes in data.chunks_exact(BLOCK) {
        let mut m = [0u32; 16];
        for (word, four) in m.iter_mut().zip(bytes.chunks_exact(4)) {
            *word = u32::from_le_bytes([four[0], four[1], four[2], four[3]]);
        }
        block(state, &m);
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{BLOCK, Job, Word, block};

    #[derive(Clone, Copy)]
    struct V16(__m512i);
    #[derive(Clone, Copy)]
    struct V8(__m256i);

    // SAFETY of every block in these two implementations: the intrinsics need AVX-512F or AVX2.
    // Only `advance_16` and `advance_8` use the types, and their callers have checked the CPU.
    impl Word for V16 {
        #[inline(always)]
        fn splat(value: u32) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_set1_epi32(value as i32) })
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_add_epi32(self.0, other.0) })
        }
        #[inline(always)]
        fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_rol_epi32::<LEFT>(self.0) })
        }
        #[inline(always)]
        fn choose(x: Self, y: Self, z: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_ternarylogic_epi32::<0xca>(x.0, y.0, z.0) })
        }
        #[inline(always)]
        fn parity(x: Self, y: Self, z: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_ternarylogic_epi32::<0x96>(x.0, y.0, z.0) })
        }
        #[inline(always)]
        fn mix(x: Self, y: Self, z: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm512_ternarylogic_epi32::<0x39>(x.0, y.0, z.0) })
        }
    }

    impl Word for V8 {
        #[inline(always)]
        fn splat(value: u32) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_set1_epi32(value as i32) })
        }
        #[inline(always)]
        fn add(self, other: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_add_epi32(self.0, other.0) })
        }
        #[inline(always)]
        fn rotate<const LEFT: i32, const RIGHT: i32>(self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_or_si256(_mm256_slli_epi32::<LEFT>(self.0), _mm256_srli_epi32::<RIGHT>(self.0)) })
        }
        #[inline(always)]
        fn choose(x: Self, y: Self, z: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_xor_si256(z.0, _mm256_and_si256(x.0, _mm256_xor_si256(y.0, z.0))) })
        }
        #[inline(always)]
        fn parity(x: Self, y: Self, z: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe { _mm256_xor_si256(x.0, _mm256_xor_si256(y.0, z.0)) })
        }
        #[inline(always)]
        fn mix(x: Self, y: Self, z: Self) -> Self {
            // SAFETY: see above.
            Self(unsafe {
                let not_z = _mm256_xor_si256(z.0, _mm256_set1_epi32(-1));
                _mm256_xor_si256(y.0, _mm256_or_si256(x.0, not_z))
            })
        }
    }

    /// Pointers for the lanes. A lane without a job reads the first job's data; its result is
    /// dropped.
    fn lanes<const N: usize>(jobs: &[Job<'_>], from: usize) -> [*const u8; N] {
        std::array::from_fn(|i| jobs.get(i).unwrap_or(&jobs[0]).data[from..].as_ptr())
    }

    /// Advances up to 16 jobs by `blocks` blocks; each job has them at `from`.
    ///
    /// # Safety
    /// The CPU has AVX-512F.
    #[target_feature(enable = "avx512f")]
    pub(super) unsafe fn advance_16(jobs: &mut [Job<'_>], from: usize, blocks: usize) {
        assert!(!jobs.is_empty() && jobs.len() <= 16);
        assert!(jobs.iter().all(|j| j.data.len() >= from + blocks * BLOCK));
        let mut state: [V16; 4] = std::array::from_fn(|w| {
            let words: [u32; 16] = std::array::from_fn(|i| jobs.get(i).map_or(0, |j| j.state[w]));
            // SAFETY: 64 bytes of `words`; unaligned loads are allowed.
            V16(unsafe { _mm512_loadu_si512(words.as_ptr().cast()) })
        });
        let at: [*const u8; 16] = lanes(jobs, from);
        for n in 0..blocks {
            // SAFETY: each pointer has `blocks * BLOCK` bytes behind it (asserted above).
            let rows: [__m512i; 16] =
                std::array::from_fn(|i| unsafe { _mm512_loadu_si512(at[i].add(n * BLOCK).cast()) });
            block(&mut state, &transpose_16(rows).map(V16));
        }
        for (w, words) in state.iter().enumerate() {
            let mut out = [0u32; 16];
            // SAFETY: 64 bytes of `out`.
            unsafe { _mm512_storeu_si512(out.as_mut_ptr().cast(), words.0) };
            for (job, word) in jobs.iter_mut().zip(out) {
                job.state[w] = word;
            }
        }
    }

    /// Transposes 16 rows of 16 words, one row a stream, into 16 vectors of one word of every
    /// stream.
    #[target_feature(enable = "avx512f")]
    fn transpose_16(r: [__m512i; 16]) -> [__m512i; 16] {
        // Within each 128-bit lane: 4x4 transposes of neighbouring rows; then 4x4 of the lanes.
        let mut q = [r[0]; 16];
        for g in 0..4 {
            let (a, b, c, d) = (r[4 * g], r[4 * g + 1], r[4 * g + 2], r[4 * g + 3]);
            let (t0, t1) = (_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (t2, t3) = (_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
            q[4 * g] = _mm512_unpacklo_epi64(t0, t2);
            q[4 * g + 1] = _mm512_unpackhi_epi64(t0, t2);
            q[4 * g + 2] = _mm512_unpacklo_epi64(t1, t3);
            q[4 * g + 3] = _mm512_unpackhi_epi64(t1, t3);
        }
        // q[4g + j], lane l: word 4l + j of rows 4g..4g+4
        let mut out = [r[0]; 16];
        for j in 0..4 {
            let (a, b, c, d) = (q[j], q[4 + j], q[8 + j], q[12 + j]);
            let (t0, t1) = (_mm512_shuffle_i32x4::<0x44>(a, b), _mm512_shuffle_i32x4::<0x44>(c, d));
            let (t2, t3) = (_mm512_shuffle_i32x4::<0xee>(a, b), _mm512_shuffle_i32x4::<0xee>(c, d));
            out[j] = _mm512_shuffle_i32x4::<0x88>(t0, t1);
            out[4 + j] = _mm512_shuffle_i32x4::<0xdd>(t0, t1);
            out[8 + j] = _mm512_shuffle_i32x4::<0x88>(t2, t3);
            out[12 + j] = _mm512_shuffle_i32x4::<0xdd>(t2, t3);
        }
        out
    }

    /// Advances up to 8 jobs by `blocks` blocks; each job has them at `from`.
    ///
    /// # Safety
    /// The CPU has AVX2.
    #[target_feature(enable = "avx2")]
    pub(super) unsafe fn advance_8(jobs: &mut [Job<'_>], from: usize, blocks: usize) {
        assert!(!jobs.is_empty() && jobs.len() <= 8);
        assert!(jobs.iter().all(|j| j.data.len() >= from + blocks * BLOCK));
        let mut state: [V8; 4] = std::array::from_fn(|w| {
            let words: [u32; 8] = std::array::from_fn(|i| jobs.get(i).map_or(0, |j| j.state[w]));
            // SAFETY: 32 bytes of `words`; unaligned loads are allowed.
            V8(unsafe { _mm256_loadu_si256(words.as_ptr().cast()) })
        });
        let at: [*const u8; 8] = lanes(jobs, from);
        for n in 0..blocks {
            let mut m = [state[0]; 16];
            for half in 0..2 {
                let rows: [__m256i; 8] = std::array::from_fn(|i| {
                    // SAFETY: each pointer has `blocks * BLOCK` bytes behind it (asserted above).
                    unsafe { _mm256_loadu_si256(at[i].add(n * BLOCK + half * 32).cast()) }
                });
                m[half * 8..half * 8 + 8].copy_from_slice(&transpose_8(rows).map(V8));
            }
            block(&mut state, &m);
        }
        for (w, words) in state.iter().enumerate() {
            let mut out = [0u32; 8];
            // SAFETY: 32 bytes of `out`.
            unsafe { _mm256_storeu_si256(out.as_mut_ptr().cast(), words.0) };
            for (job, word) in jobs.iter_mut().zip(out) {
                job.state[w] = word;
            }
        }
    }

    #[target_feature(enable = "avx2")]
    fn transpose_8(r: [__m256i; 8]) -> [__m256i; 8] {
        let mut q = [r[0]; 8];
        for g in 0..2 {
            let (a, b, c, d) = (r[4 * g], r[4 * g + 1], r[4 * g + 2], r[4 * g + 3]);
            let (t0, t1) = (_mm256_unpacklo_epi32(a, b), _mm256_unpackhi_epi32(a, b));
            let (t2, t3) = (_mm256_unpacklo_epi32(c, d), _mm256_unpackhi_epi32(c, d));
            q[4 * g] = _mm256_unpacklo_epi64(t0, t2);
            q[4 * g + 1] = _mm256_unpackhi_epi64(t0, t2);
            q[4 * g + 2] = _mm256_unpacklo_epi64(t1, t3);
            q[4 * g + 3] = _mm256_unpackhi_epi64(t1, t3);
        }
        let mut out = [r[0]; 8];
        for j in 0..4 {
            out[j] = _mm256_permute2x128_si256::<0x20>(q[j], q[4 + j]);
            out[4 + j] = _mm256_permute2x128_si256::<0x31>(q[j], q[4 + j]);
        }
        out
    }
}

/// The number of streams that one call advances in about the time of one, on this CPU.
pub(super) fn lanes() -> usize {
    #[cfg(target_arch = "x86_64")]
    {
        if std::is_x86_feature_detected!("avx512f") {
            return 16;
        }
        if std::is_x86_feature_detected!("avx2") {
            return 8;
        }
    }
    1
}

/// Advances every job by all of its data. At most [`lanes`] jobs share a pass; the lengths of the
/// data may differ.
pub(super) fn advance(jobs: &mut [Job<'_>]) {
    // Longest first: each pass covers the data of its shortest job, then continues without that
    // job.
    jobs.sort_by_key(|job| std::cmp::Reverse(job.data.len()));
    let lanes = lanes();
    for group in jobs.chunks_mut(lanes) {
        let (mut from, mut left) = (0, group.len());
        while left > 0 {
            let shortest = group[left - 1].data.len() / BLOCK * BLOCK;
            pass(&mut group[..left], from, (shortest - from) / BLOCK, lanes);
            from = shortest;
            while left > 0 && group[left - 1].data.len() / BLOCK * BLOCK == from {
                left -= 1;
            }
        }
    }
}

fn pass(jobs: &mut [Job<'_>], from: usize, blocks: usize, lanes: usize) {
    if blocks == 0 {
        return;
    }
    #[cfg(target_arch = "x86_64")]
    if jobs.len() > 1 {
        match lanes {
            // SAFETY: `lanes` says 16 only where the CPU has AVX-512F.
            16 => return unsafe { x86::advance_16(jobs, from, blocks) },
            // SAFETY: `lanes` says 8 only where the CPU has AVX2.
            8 => return unsafe { x86::advance_8(jobs, from, blocks) },
            _ => {}
        }
    }
    let _ = lanes;
    for job in jobs {
        advance_scalar(job.state, &job.data[from..from + blocks * BLOCK]);
    }
}

/// The digest of a stream of `length` bytes; `rest` holds the last bytes, less than a block.
pub(super) fn finish(mut state: [u32; 4], rest: &[u8], length: u64) -> [u8; 16] {
    let mut tail = [0u8; 2 * BLOCK];
    tail[..rest.len()].copy_from_slice(rest);
    tail[rest.len()] = 0x80;
    let end = if rest.len() + 9 <= BLOCK { BLOCK } else { 2 * BLOCK };
    tail[end - 8..end].copy_from_slice(&length.wrapping_mul(8).to_le_bytes());
    advance_scalar(&mut state, &tail[..end]);
    let mut out = [0; 16];
    for (four, word) in out.chunks_exact_mut(4).zip(state) {
        four.copy_from_slice(&word.to_le_bytes());
    }
    out
}

#[cfg(test)]
mod tests {
    use ::md5::{Digest, Md5};

    use super::*;

    fn bytes(seed: u64, len: usize) -> Vec<u8> {
        let mut x = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        (0..len)
            .map(|_| {
                x ^= x << 13;
                x ^= x >> 7;
                x ^= x << 17;
                x as u8
            })
            .collect()
    }

    #[test]
    fn any_number_of_streams_of_any_length_agree_with_the_library() {
        for streams in 1..=35usize {
            let inputs: Vec<Vec<u8>> =
                (0..streams).map(|i| bytes(i as u64 + 1, (i * 7919 + streams * 131) % 3000)).collect();
            let mut states = vec![INITIAL; streams];
            let mut jobs: Vec<Job<'_>> = states
                .iter_mut()
                .zip(&inputs)
                .map(|(state, data)| Job { state, data: &data[..data.len() / BLOCK * BLOCK] })
                .collect();
            advance(&mut jobs);
            for (state, data) in states.iter().zip(&inputs) {
                let whole = data.len() / BLOCK * BLOCK;
                let expected: [u8; 16] = Md5::digest(data).into();
                assert_eq!(finish(*state, &data[whole..], data.len() as u64), expected, "{streams} streams");
            }
        }
    }

    #[test]
    fn the_narrow_lanes_agree_too() {
        #[cfg(target_arch = "x86_64")]
        if std::is_x86_feature_detected!("avx2") {
            let inputs: Vec<Vec<u8>> = (0..8).map(|i| bytes(i + 1, 640)).collect();
            let mut states = [INITIAL; 8];
            let mut jobs: Vec<Job<'_>> =
                states.iter_mut().zip(&inputs).map(|(state, data)| Job { state, data }).collect();
            pass(&mut jobs, 0, 10, 8);
            for (state, data) in states.iter().zip(&inputs) {
                let expected: [u8; 16] = Md5::digest(data).into();
                assert_eq!(finish(*state, &[], 640), expected);
            }
        }
    }
}
