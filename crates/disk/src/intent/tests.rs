//! The state machine against a model of the durable disk: what a crash at any time would find.

use proptest::prelude::*;

use super::*;

const COPY: [u8; 16] = [7; 16];

fn request_one(intent: &mut Intent, region: usize) -> io::Result<Readiness> {
    let failed = intent.failed_rounds();
    intent.request(region..region + 1, failed)
}

/// Creates the state with the bits of all regions clear.
fn clean() -> Intent {
    let mut intent = Intent::new();
    let area: Vec<u8> = (0..BLOCKS).flat_map(|block| bits::encode(block, &COPY, |_| false)).collect();
    intent.load(&area, &COPY);
    assert_eq!(intent.dirty(REGIONS_MAX), 0);
    intent
}

#[test]
fn bits_are_read_back_and_damaged_ones_count_as_set() {
    let set = |region: usize| region.is_multiple_of(3);
    let mut area: Vec<u8> = (0..BLOCKS).flat_map(|block| bits::encode(block, &COPY, set)).collect();
    let read = |area: &[u8], copy: &[u8; 16]| {
        let mut intent = Intent::new();
        intent.load(area, copy);
        (0..REGIONS_MAX as usize).filter(|region| !intent.is_clean(*region)).count()
    };
    let third = REGIONS_MAX as usize / 3 + 1;
    assert_eq!(read(&area, &COPY), third);
    assert_eq!(read(&area, &[8; 16]), REGIONS_MAX as usize, "of another copy");
    assert_eq!(read(&[], &COPY), REGIONS_MAX as usize);
    area[700] ^= 1;
    let sector = 508 * 8;
    assert_eq!(read(&area, &COPY), third + sector - sector.div_ceil(3), "one sector is damaged");
    assert_eq!(read(&Intent::encode_all_set(&COPY), &COPY), REGIONS_MAX as usize);
}

#[test]
fn many_requests_share_a_round_and_each_waits_for_its_own() {
    let mut intent = clean();
    assert_eq!(intent.request(3..5, 0).expect("requested"), Readiness::Wait);
    let first = intent.take();
    assert_eq!(first, [3, 4]);
    assert_eq!(intent.request(4..6, 0).expect("requested"), Readiness::Wait);
    intent.set(&first);
    assert_eq!(intent.request(3..5, 0).expect("set"), Readiness::Ready);
    assert_eq!(intent.request(4..6, 0).expect("requested"), Readiness::Wait, "the last one is in the next round");
    let second = intent.take();
    assert_eq!(second, [5]);
    intent.set(&second);
    assert_eq!(intent.request(4..6, 0).expect("set"), Readiness::Ready);
    assert!(intent.take().is_empty());
}

#[test]
fn a_round_that_fails_fails_those_that_wait_for_it_and_no_others() {
    let mut intent = clean();
    assert_eq!(intent.request(1..2, 0).expect("requested"), Readiness::Wait);
    let batch = intent.take();
    intent.put_back(&batch, libc::EIO);
    assert_eq!(intent.request(1..2, 0).expect_err("failed").raw_os_error(), Some(libc::EIO));
    assert_eq!(request_one(&mut intent, 1).expect("requested again"), Readiness::Wait);
    intent.latch(libc::EIO);
    assert!(intent.take().is_empty());
    assert_eq!(request_one(&mut intent, 1).expect_err("latched").raw_os_error(), Some(libc::EIO));
    let mut intent = clean();
    intent.close();
    assert!(request_one(&mut intent, 1).is_err());
}

#[test]
fn a_write_takes_its_region_out_of_the_batch_that_is_cleared() {
    let mut intent = Intent::new();
    intent.begin_clear(&[1, 2]);
    assert!(!intent.is_dirty(1) && !intent.is_clean(1));
    assert_eq!(request_one(&mut intent, 1).expect("set"), Readiness::Ready);
    intent.end_clear(&[1, 2]);
    assert!(intent.is_dirty(1) && intent.is_clean(2));
    intent.begin_clear(&[1]);
    intent.stop_clear();
    assert!(intent.is_dirty(1));
}

#[derive(Debug, Clone)]
enum Step {
    Write(usize),
    Round { fails: bool },
    Clear { ends: bool },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..6usize).prop_map(Step::Write),
        3 => prop::bool::weighted(0.2).prop_map(|fails| Step::Round { fails }),
        2 => any::<bool>().prop_map(|ends| Step::Clear { ends }),
    ]
}

proptest! {
    /// A region that may be written has its bit on the disk at every moment, whatever a failed
    /// round or a batch left there.
    #[test]
    fn a_writable_region_has_its_bit_on_the_disk(steps in prop::collection::vec(step(), 1..60)) {
        let mut intent = clean();
        let mut disk = vec![false; BLOCK_REGIONS];
        let mut clearing: Option<Vec<u32>> = None;
        let flush = |intent: &Intent, batch: &[u32], disk: &mut Vec<bool>| {
            for (block, bytes) in intent.encode(batch, &COPY) {
                assert_eq!(block, 0);
                *disk = bits::decode(&bytes, &COPY)[..BLOCK_REGIONS].to_vec();
            }
        };
        for step in steps {
            match step {
                Step::Write(region) => drop(request_one(&mut intent, region)),
                Step::Round { fails } => {
                    let batch = intent.take();
                    flush(&intent, &batch, &mut disk);
                    if fails { intent.put_back(&batch, libc::EIO) } else { intent.set(&batch) }
                }
                Step::Clear { ends } => match clearing.take() {
                    None => {
                        let batch: Vec<u32> = (0..6).filter(|region| intent.is_dirty(*region as usize)).collect();
                        intent.begin_clear(&batch);
                        clearing = Some(batch);
                    }
                    Some(batch) if ends => {
                        intent.end_clear(&batch);
                        flush(&intent, &batch, &mut disk);
                    }
                    Some(_) => intent.stop_clear(),
                },
            }
            for (region, (bit, durable)) in intent.bits.iter().zip(&disk).take(6).enumerate() {
                let ready = matches!(bit, Bit::Dirty | Bit::Clearing);
                prop_assert!(!ready || *durable, "region {}", region);
            }
            let dirty = intent.bits.iter().filter(|bit| **bit != Bit::Clean).count() as u64;
            prop_assert_eq!(dirty, intent.dirty(REGIONS_MAX));
        }
    }
}
