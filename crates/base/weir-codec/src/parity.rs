//! Parity of raidz rows: computes up to three parity strips for any number of data strips, and
//! reconstructs lost strips.
//!
//! weir-pool knows which disk has which strip of a row, and which strips are valid. [`encode`] has
//! the equations of the parity. Weir has its own implementation, because the crates for
//! Reed-Solomon codes use other matrices or other codes, in which P is not a plain XOR. A plain XOR
//! makes raidz1 and most reconstructions cheap.
//!
//! Invariants: the equations are part of the on-disk format and never change; every kernel computes
//! the same bytes.

#[cfg(target_arch = "x86_64")]
mod avx2;
mod field;
mod portable;

/// Maximum number of parity strips of a row.
pub const PARITY_STRIPS_MAX: usize = 3;
/// Maximum number of data strips of a row. The equations are independent only up to this number,
/// because 2 has order 255 in the field.
pub const DATA_STRIPS_MAX: usize = 255;
/// The length of a strip is a multiple of this number of bytes.
pub const UNIT_BYTES: usize = 64;

/// Instruction set that a parity kernel uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kernel {
    Portable,
    #[cfg(target_arch = "x86_64")]
    Avx2,
}

impl Kernel {
    /// The fastest kernel that this machine supports.
    fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            return Self::Avx2;
        }
        Self::Portable
    }

    fn encode<const P: usize>(self, data: &[&[u8]], parity: &mut [&mut [u8]; P]) {
        match self {
            Self::Portable => portable::encode(data, parity),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::encode(data, parity),
        }
    }

    /// Computes `sum += factor * source` for all bytes of a strip.
    fn multiply_add(self, sum: &mut [u8], source: &[u8], factor: u8) {
        match self {
            Self::Portable => portable::multiply_add(sum, source, factor),
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => avx2::multiply_add(sum, source, factor),
        }
    }
}

/// Computes the parity strips of a row.
///
/// Theory (H. P. Anvin, "The mathematics of RAID-6"; OpenZFS `vdev_raidz.c` for the third strip):
/// bytes are elements of GF(2^8) modulo x^8 + x^4 + x^3 + x^2 + 1 (0x11d), whose generator is 2.
/// The parity strips P, Q and R of the data strips D0 ... Dk-1 are
/// ```text
/// P = sum Di          Q = sum 2^i Di          R = sum 4^i Di
/// ```
/// The sums are computed byte by byte. With Horner's rule, only multiplications by 2 and 4 are
/// necessary. To reconstruct n lost data strips, [`Recovery`] solves n of these equations. For up
/// to 255 data strips, the coefficients form a regular matrix for any choice of equations and
/// strips, so a row with p parity strips can lose any p strips.
///
/// `data` contains the data strips in order, 1 to [`DATA_STRIPS_MAX`]; `parity` receives P, then Q,
/// then R, 1 to [`PARITY_STRIPS_MAX`]. All strips have the same length, a multiple of
/// [`UNIT_BYTES`].
pub fn encode(data: &[&[u8]], parity: &mut [&mut [u8]]) {
    encode_with(Kernel::best(), data, parity);
}

fn encode_with(kernel: Kernel, data: &[&[u8]], parity: &mut [&mut [u8]]) {
    assert!((1..=DATA_STRIPS_MAX).contains(&data.len()), "a row has data strips, and not too many");
    let len = data[0].len();
    assert!(len.is_multiple_of(UNIT_BYTES), "strips are whole units");
    assert!(data.iter().all(|strip| strip.len() == len), "all strips are of one length");
    assert!(parity.iter().all(|strip| strip.len() == len), "all strips are of one length");
    match parity {
        [p] => kernel.encode(data, &mut [p]),
        [p, q] => kernel.encode(data, &mut [p, q]),
        [p, q, r] => kernel.encode(data, &mut [p, q, r]),
        _ => panic!("a row has 1 to {PARITY_STRIPS_MAX} parity strips"),
    }
}

/// Equations that compute the lost strips of a row from the other strips of the row.
///
/// Strip numbers: the data strips are 0 ... k-1, P is k, Q is k+1, R is k+2.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovery {
    lost: Vec<LostStrip>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct LostStrip {
    strip: usize,
    /// Strips whose sum is the lost strip, each with its factor. None of these strips is lost.
    sources: Vec<(usize, u8)>,
}

impl Recovery {
    /// `data` and `parity` are the numbers of data and parity strips in a row. `lost` contains the
    /// numbers of the lost strips, sorted; there are at most `parity` of them.
    pub fn new(data: usize, parity: usize, lost: &[usize]) -> Self {
        assert!((1..=DATA_STRIPS_MAX).contains(&data) && parity <= PARITY_STRIPS_MAX);
        assert!(lost.is_sorted_by(|a, b| a < b) && lost.iter().all(|strip| *strip < data + parity));
        assert!(lost.len() <= parity, "at most {parity} lost strips can be reconstructed");
        let unknown: Vec<usize> = lost.iter().copied().filter(|strip| *strip < data).collect();
        let equations: Vec<usize> =
            (0..parity).filter(|row| !lost.contains(&(data + row))).take(unknown.len()).collect();
        let solved = solve(data, &unknown, &equations);
        let lost = lost
            .iter()
            .map(|&strip| {
                let factors = match unknown.iter().position(|other| *other == strip) {
                    Some(index) => solved[index].clone(),
                    None => parity_factors(data, strip - data, &unknown, &solved),
                };
                let sources = factors.into_iter().enumerate().filter(|(_, factor)| *factor != 0);
                LostStrip { strip, sources: sources.collect() }
            })
            .collect();
        Self { lost }
    }

    /// Computes one lost strip into `out`.
    ///
    /// `strips` contains the same range of bytes of each strip, by strip number. The function reads
    /// only the strips from which it computes the lost strip.
    pub fn strip(&self, strip: usize, strips: &[Option<&[u8]>], out: &mut [u8]) {
        self.strip_with(Kernel::best(), strip, strips, out);
    }

    fn strip_with(&self, kernel: Kernel, strip: usize, strips: &[Option<&[u8]>], out: &mut [u8]) {
        assert!(out.len().is_multiple_of(UNIT_BYTES), "strips are whole units");
        let lost = self.lost.iter().find(|lost| lost.strip == strip).expect("a lost strip");
        out.fill(0);
        for (source, factor) in &lost.sources {
            let source = strips[*source].expect("a strip that is not lost has data");
            kernel.multiply_add(out, source, *factor);
        }
    }
}

/// Factor of data strip `index` in the equation `row` (0 is P, 1 is Q, 2 is R).
fn factor(row: usize, index: usize) -> u8 {
    field::power(1 << row, index)
}

/// Returns for each lost data strip the factors of all strips of the row; lost strips have factor
/// 0.
///
/// Starts from `sum over lost x of g^x Dx = parity + sum over known i of g^i Di` for each equation,
/// and uses Gauss-Jordan elimination of a matrix of at most 3 x 3.
fn solve(data: usize, unknown: &[usize], equations: &[usize]) -> Vec<Vec<u8>> {
    let width = data + PARITY_STRIPS_MAX;
    let mut left: Vec<Vec<u8>> = equations
        .iter()
        .map(|row| unknown.iter().map(|strip| factor(*row, *strip)).collect())
        .collect();
    let mut right: Vec<Vec<u8>> = equations
        .iter()
        .map(|row| {
            let mut factors = vec![0; width];
            for (index, slot) in factors[..data].iter_mut().enumerate() {
                *slot = if unknown.contains(&index) { 0 } else { factor(*row, index) };
            }
            factors[data + row] = 1;
            factors
        })
        .collect();
    for pivot in 0..unknown.len() {
        let row = (pivot..unknown.len()).find(|row| left[*row][pivot] != 0);
        let row = row.expect("the equations are independent");
        left.swap(pivot, row);
        right.swap(pivot, row);
        let inverse = field::inverse(left[pivot][pivot]);
        scale(&mut left[pivot], inverse);
        scale(&mut right[pivot], inverse);
        for other in (0..unknown.len()).filter(|other| *other != pivot) {
            let times = left[other][pivot];
            add_scaled(&mut left, pivot, other, times);
            add_scaled(&mut right, pivot, other, times);
        }
    }
    right
}

fn scale(row: &mut [u8], by: u8) {
    row.iter_mut().for_each(|value| *value = field::multiply(*value, by));
}

/// Adds `times` times the matrix row `source` to the matrix row `destination`.
fn add_scaled(rows: &mut [Vec<u8>], source: usize, destination: usize, times: u8) {
    let source = rows[source].clone();
    for (value, add) in rows[destination].iter_mut().zip(source) {
        *value ^= field::multiply(add, times);
    }
}

/// Factors of a lost parity strip: in the equation of the parity strip, the solutions replace the
/// lost data strips.
fn parity_factors(data: usize, row: usize, unknown: &[usize], solved: &[Vec<u8>]) -> Vec<u8> {
    let mut factors = vec![0; data + PARITY_STRIPS_MAX];
    for (index, slot) in factors[..data].iter_mut().enumerate() {
        *slot = if unknown.contains(&index) { 0 } else { factor(row, index) };
    }
    for (strip, solution) in unknown.iter().zip(solved) {
        for (slot, value) in factors.iter_mut().zip(solution) {
            *slot ^= field::multiply(*value, factor(row, *strip));
        }
    }
    factors
}

#[cfg(test)]
mod tests;
