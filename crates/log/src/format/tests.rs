//! Property tests of the formats: round trips, detection of every flipped bit, decoders that never
//! panic.

use bytes::Bytes;
use proptest::prelude::*;

use super::*;

fn id(extent: u32, epoch: u64) -> ExtentId {
    ExtentId { pool: [7; 16], extent, epoch }
}

fn flips(bytes: &[u8], len: usize, refused: impl Fn(&[u8]) -> bool) {
    let mut copy = bytes.to_vec();
    for bit in 0..len * 8 {
        copy[bit / 8] ^= 1 << (bit % 8);
        assert!(refused(&copy), "bit {bit} flipped and not noticed");
        copy[bit / 8] ^= 1 << (bit % 8);
    }
}

#[test]
fn superblock_round_trip_flips_and_versions() {
    let sb = Superblock { pool: [3; 16], extent_bytes: 1 << 28, created_ms: 99, zones: None, features: Features::NONE };
    let bytes = sb.encode();
    assert_eq!(Superblock::decode(&bytes), Ok(sb));
    flips(&bytes, 128, |b| Superblock::decode(b).is_err());
    let mut newer = bytes;
    put(&mut newer, 8, &9u32.to_le_bytes());
    let crc = crc32c(&newer[..124]);
    put(&mut newer, 124, &crc.to_le_bytes());
    assert_eq!(Superblock::decode(&newer), Err(FormatError::Version { what: "superblock", found: 9 }));
    assert_eq!(Superblock::decode(&[0; 4096]), Err(FormatError::Magic("superblock")));
}

#[test]
fn superblock_of_a_pool_on_zones() {
    let zones =
        Zoning { begin: 1 << 28, zone_bytes: 1 << 28, conventional_bytes: 1 << 28, open_zones_max: 14, emulated: true };
    let plain =
        Superblock { pool: [3; 16], extent_bytes: 200 << 20, created_ms: 99, zones: None, features: Features::NONE };
    let sb = Superblock { zones: Some(zones), ..plain };
    let ledger = Ledger { generation: 7, epoch_bound: 2048, recycled_lsn: 99, opening: 5 };
    let bytes = sb.encode_with(&ledger);
    assert_eq!(Superblock::decode_with(&bytes), Ok((sb, ledger)));
    flips(&bytes, 128, |b| Superblock::decode(b).is_err());
    // The version keeps earlier builds away; a pool without zones is unchanged.
    assert_eq!((bytes[8], plain.encode()[8]), (2, 1));
    assert!(plain.encode()[56..124].iter().all(|b| *b == 0));
    // Extents begin at the zones, and end at their writable capacity.
    assert_eq!((sb.extent_start(0), sb.extent_start(3)), (1 << 28, 4 << 28));
    assert_eq!((sb.extents_in((5 << 28) + 100), sb.extents_in(1 << 20)), (4, 0));
    assert_eq!((plain.extent_start(2), plain.extents_in(1 << 30)), ((1 << 20) + (400 << 20), 5));
    // Without conventional space, the first two zones are the superblocks'.
    let bare = Superblock { zones: Some(Zoning { begin: 2 << 28, conventional_bytes: 0, ..zones }), ..plain };
    assert_eq!(Superblock::decode(&bare.encode()), Ok(bare));
    for wrong in [
        Zoning { begin: 1 << 29, ..zones },
        Zoning { zone_bytes: 100 << 20, begin: 1 << 28, ..zones },
        Zoning { begin: 64 << 10, conventional_bytes: 64 << 10, ..zones },
    ] {
        let bytes = Superblock { zones: Some(wrong), ..plain }.encode();
        assert!(Superblock::decode(&bytes).is_err(), "{wrong:?}");
    }
}

/// How builds older than features read a superblock: they know versions 1 and 2, and ignore
/// everything behind the ledger.
fn opened_by_an_old_build(b: &[u8]) -> bool {
    crc32c(&b[..124]) == u32_at(b, 124) && matches!(u32_at(b, 8), 1 | 2)
}

#[test]
fn features_keep_builds_away_that_do_not_know_them() {
    let zones =
        Zoning { begin: 1 << 28, zone_bytes: 1 << 28, conventional_bytes: 1 << 28, open_zones_max: 14, emulated: true };
    for zones in [None, Some(zones)] {
        let plain =
            Superblock { pool: [3; 16], extent_bytes: 200 << 20, created_ms: 99, zones, features: Features::NONE };
        assert!(opened_by_an_old_build(&plain.encode()));
        let with = |features: Features| Superblock { features, ..plain };
        let compatible = with(Features { compatible: 1 << 31, ..Features::NONE });
        assert_eq!(Superblock::decode(&compatible.encode()), Ok(compatible), "ignored, and kept");
        assert!(opened_by_an_old_build(&compatible.encode()));
        let read_only = with(Features { read_only: 1 << 31, ..Features::NONE });
        assert_eq!(Superblock::decode(&read_only.encode()), Ok(read_only));
        assert!(!opened_by_an_old_build(&read_only.encode()));
        let why = read_only.features.unwritable().expect("not known");
        assert!(why.contains("0x80000000") && why.contains("verify"), "{why}");
        let incompatible = with(Features { incompatible: 1 << 31, ..Features::NONE });
        assert_eq!(Superblock::decode(&incompatible.encode()), Err(FormatError::Features(1 << 31)));
        assert!(!opened_by_an_old_build(&incompatible.encode()));
        assert!(plain.features.unwritable().is_none() && compatible.features.unwritable().is_none());
    }
}

#[test]
fn extent_header_and_trailer_round_trip_and_flips() {
    let lineage = Lineage([(9, 1230), (8, 40), (7, 0)].map(|(id, after)| Opening { id, after }));
    let header = ExtentHeader { id: id(5, 77), kind: ExtentKind::Body, base_lsn: 1234, recycled_lsn: 1200, lineage };
    let bytes = header.encode();
    assert_eq!(ExtentHeader::decode(&bytes), Ok(header));
    flips(&bytes, 128, |b| ExtentHeader::decode(b).is_err());
    let trailer = Trailer {
        id: id(5, 77),
        kind: ExtentKind::Commit,
        data_end: 8192,
        footer_offset: 12288,
        footer_len: 4096,
        record_count: 3,
        first_lsn: 10,
        last_lsn: 12,
        min_version: 4,
        last_checksum: 0xabcd,
        prev_lsn: 9,
    };
    let bytes = trailer.encode();
    assert_eq!(Trailer::decode(&bytes, 1 << 20), Ok(trailer));
    flips(&bytes, 128, |b| Trailer::decode(b, 1 << 20).is_err());
    assert!(Trailer::decode(&bytes, 16384).is_err(), "a footer beyond the extent");
}

fn frame_of(id: &ExtentId, offset: u32, records: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
    let mut frame = vec![0; FRAME_HEADER];
    for (i, (head, body)) in records.iter().enumerate() {
        let at = frame.len();
        let header = RecordHeader {
            lsn: 100 + i as u64,
            version: 100 + i as u64,
            moved: i % 2 == 1,
            head_len: head.len() as u32,
            body_len: body.len() as u32,
        };
        frame.resize(at + record_bytes(header.head_len, header.body_len) as usize, 0);
        let pieces = [Bytes::copy_from_slice(&body[..body.len() / 2]), Bytes::copy_from_slice(&body[body.len() / 2..])];
        encode_record(&mut frame[at..], id.seed(), offset + at as u32, &header, head, &pieces);
    }
    let payload_len = (frame.len() - FRAME_HEADER) as u32;
    let header = FrameHeader {
        kind: FrameKind::Commit,
        copy: false,
        id: *id,
        offset,
        first_lsn: 100,
        last_lsn: 100 + records.len() as u64 - 1,
        prev_lsn: 99,
        durable_lsn: 98,
        min_version: 100,
        prev_checksum: 0x1234,
        record_count: records.len() as u32,
        payload_start: FRAME_HEADER as u32,
        payload_len,
        checked_len: payload_len,
        payload_checksum: FrameHeader::payload_crc(id.seed(), offset, &frame[FRAME_HEADER..]),
    };
    header.encode(&mut frame);
    frame
}

type HeadAndBody = (Vec<u8>, Vec<u8>);

fn check_frame(bytes: &[u8], id: &ExtentId, offset: u32) -> Result<Vec<HeadAndBody>, FormatError> {
    let (header, _) = FrameHeader::decode(bytes)?;
    if !header.is_at(id, u64::from(offset), 1 << 28) {
        return Err(FormatError::Field("place"));
    }
    header.verify_payload(bytes)?;
    header
        .records(bytes)
        .map(|view| {
            let view = view?;
            view.verify_body(id.seed())?;
            Ok((view.head.to_vec(), view.body.to_vec()))
        })
        .collect()
}

#[test]
fn frame_flips_are_found() {
    let records = vec![(b"head".to_vec(), b"a body".to_vec()), (vec![], vec![]), (b"x".to_vec(), vec![9; 300])];
    let bytes = frame_of(&id(3, 9), 8192, &records);
    assert_eq!(check_frame(&bytes, &id(3, 9), 8192), Ok(records));
    flips(&bytes, bytes.len(), |b| check_frame(b, &id(3, 9), 8192).is_err());
}

#[test]
fn one_record_alone_is_verified_by_its_own_checksums() {
    let bytes = frame_of(&id(3, 9), 4096, &[(b"head".to_vec(), vec![5; 1000])]);
    let seed = id(3, 9).seed();
    let record = &bytes[FRAME_HEADER..];
    let offset = 4096 + FRAME_HEADER as u32;
    let check = |b: &[u8]| RecordView::parse(b, seed, offset).and_then(|v| v.verify_body(seed));
    assert_eq!(check(record), Ok(()));
    flips(record, record.len(), |b| check(b).is_err());
}

#[test]
fn bytes_of_another_use_or_place_do_not_validate() {
    let bytes = frame_of(&id(3, 9), 4096, &[(b"head".to_vec(), vec![5; 1000])]);
    let record = &bytes[FRAME_HEADER..];
    let at = 4096 + FRAME_HEADER as u32;
    assert!(RecordView::parse(record, id(3, 9).seed(), at).is_ok());
    for (other, offset) in [(id(3, 10), at), (id(4, 9), at), (id(3, 9), at + 4096)] {
        assert!(RecordView::parse(record, other.seed(), offset).is_err());
    }
    assert!(check_frame(&bytes, &id(3, 10), 4096).is_err());
    assert!(check_frame(&bytes, &id(3, 9), 8192).is_err());
}

fn footer_of(id: &ExtentId, offset: u32, heads: &[Vec<u8>]) -> Vec<u8> {
    let mut block = vec![0; FOOTER_BLOCK_HEADER];
    for (i, head) in heads.iter().enumerate() {
        let i = i as u32;
        FooterEntry { lsn: u64::from(i), version: 1, moved: i.is_multiple_of(2), offset: i * 8, body_len: i, head }
            .encode(&mut block);
    }
    seal_footer_block(&mut block, id, offset, 2, heads.len() as u32);
    block
}

#[test]
fn footer_flips_are_found() {
    let heads = vec![b"one".to_vec(), vec![], b"three".to_vec()];
    let bytes = footer_of(&id(1, 2), 4096, &heads);
    let len = FOOTER_BLOCK_HEADER + heads.iter().map(|h| footer_entry_bytes(h.len())).sum::<usize>();
    flips(&bytes, len, |b| FooterBlock::decode(b, &id(1, 2), 4096, 2).is_err());
    assert!(FooterBlock::decode(&bytes, &id(1, 2), 4096, 1).is_err());
    assert!(FooterBlock::decode(&bytes, &id(1, 3), 4096, 2).is_err());
}

fn body() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        4 => proptest::collection::vec(any::<u8>(), 0..2000),
        1 => (any::<u8>(), 60_000usize..200_000).prop_map(|(b, n)| (0..n).map(|i| b.wrapping_add(i as u8)).collect()),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn frames_round_trip(records in proptest::collection::vec((proptest::collection::vec(any::<u8>(), 0..300), body()), 1..6),
                         extent: u32, epoch: u64, block in 1u32..1000) {
        let id = id(extent, epoch);
        let bytes = frame_of(&id, block * 4096, &records);
        prop_assert_eq!(check_frame(&bytes, &id, block * 4096), Ok(records));
    }

    #[test]
    fn a_flipped_bit_anywhere_in_a_large_frame_is_found(body in body(), at: prop::sample::Index, bit in 0u8..8) {
        let mut bytes = frame_of(&id(1, 1), 4096, &[(b"h".to_vec(), body)]);
        let at = at.index(bytes.len());
        bytes[at] ^= 1 << bit;
        prop_assert!(check_frame(&bytes, &id(1, 1), 4096).is_err());
    }

    #[test]
    fn footers_round_trip(heads in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..500), 0..50)) {
        let bytes = footer_of(&id(1, 2), 8192, &heads);
        prop_assert_eq!(FooterBlock::peek_len(&bytes), Ok(bytes.len()));
        let block = FooterBlock::decode(&bytes, &id(1, 2), 8192, 2).expect("valid");
        let found: Vec<_> = block.entries().map(|e| e.expect("valid").head.to_vec()).collect();
        prop_assert_eq!(found, heads);
    }

    #[test]
    fn decoders_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..6000), cut in 0usize..6000, magic in 0usize..8) {
        let mut bytes = bytes;
        let marks: [&[u8]; 8] = [b"", b"SFRM\x01\x00", b"SFFT\x01\x00", b"SFEXTENT", b"SFTRAILR", b"STEADFST", b"\x52\x53", b""];
        let n = marks[magic].len().min(bytes.len());
        bytes[..n].copy_from_slice(&marks[magic][..n]);
        bytes.truncate(cut);
        let _ = Superblock::decode(&bytes);
        let _ = ExtentHeader::decode(&bytes);
        let _ = Trailer::decode(&bytes, 1 << 20);
        let _ = RecordView::parse(&bytes, id(1, 1).seed(), u32::MAX);
        let _ = FooterBlock::peek_len(&bytes);
        let _ = FooterBlock::decode(&bytes, &id(1, 1), 0, 0).map(|b| b.entries().count());
        if let Ok((header, _)) = FrameHeader::decode(&bytes) {
            let _ = header.verify_payload(&bytes);
            let _ = header.records(&bytes).count();
        }
    }

    /// Headers with valid checksums but arbitrary fields, as a fuzzer with the seed can make them.
    #[test]
    fn genuine_headers_with_wild_fields_never_panic(payload_start in 0u32..5000, payload_len: u32, count: u32, offset: u32,
                                                    bytes in proptest::collection::vec(any::<u8>(), 112..3000)) {
        let mut bytes = bytes;
        let header = FrameHeader {
            kind: FrameKind::Commit, copy: true, id: id(1, 1), offset, first_lsn: 1, last_lsn: 2, prev_lsn: 0, durable_lsn: 0,
            min_version: 1, prev_checksum: 0, record_count: count, payload_start, payload_len, checked_len: payload_len,
            payload_checksum: 0,
        };
        header.encode(&mut bytes);
        if let Ok((header, _)) = FrameHeader::decode(&bytes) {
            let _ = header.total_len();
            let _ = header.verify_payload(&bytes);
            prop_assert!(header.records(&bytes).take(10_000).count() <= 10_000);
            let _ = header.is_at(&id(1, 1), u64::from(offset), 1 << 28);
        }
    }
}
