extern crate std;
use std::vec::Vec;

use super::*;

#[test]
fn a_body_has_the_length_of_its_kind() {
    let fixed = [(2, 40), (3, 0), (4, 4), (5, 36), (7, 8), (8, 170), (9, 8), (10, 0), (11, 0), (12, 16), (13, 0)];
    for (number, len) in fixed.into_iter().chain([(17, 96)]) {
        let body = [0; 200];
        for other in 0..body.len() {
            assert_eq!(read(number, &body[..other]).is_ok(), other == len, "kind {number}, {other} bytes");
        }
    }
}

#[test]
fn numbers_without_a_kind_are_refused() {
    assert!([0, 18, 255].into_iter().all(|number| read(number, &[]).is_err()));
}

#[test]
fn entropy_is_missing_expired_or_a_hash() {
    assert!(matches!(read(1, &[0]), Ok(Message::Tick(Tick { entropy: Entropy::None }))));
    assert!(matches!(read(1, &[1]), Ok(Message::Tick(Tick { entropy: Entropy::Expired }))));
    let body = [2; 33];
    assert!(matches!(read(1, &body), Ok(Message::Tick(Tick { entropy: Entropy::Hash(&[2, ..]) }))));
    assert!(read(1, &body[..32]).is_err() && read(1, &[3]).is_err() && read(1, &[0, 0]).is_err());
}

#[test]
fn the_length_of_a_report_says_how_much_metadata_follows() {
    let mut body = [0; 497 + 300];
    for len in [0_usize, 1, 256, 257] {
        body[493..497].copy_from_slice(&(len as u32).to_le_bytes());
        assert_eq!(read(6, &body[..497 + len]).is_ok(), len <= 256);
        assert!(read(6, &body[..498 + len]).is_err());
        assert!(read(6, &body[..496]).is_err());
    }
}

#[test]
fn reports_with_unknown_flags_are_refused() {
    for flags in 0..=255 {
        let mut body = [0; 497];
        body[8] = flags;
        assert_eq!(read(6, &body).is_ok(), flags < 8);
    }
}

#[test]
fn claims_are_read_in_order() {
    let mut body: Vec<u8> = std::vec![2, 0, 0, 0];
    body.extend([7; 32]);
    body.push(0);
    body.extend([8; 32]);
    body.extend([1, 5, 0, 0, 0, 0, 0, 0, 0]);
    let Ok(Message::Collect(Collect { claims })) = read(15, &body) else { panic!("refused") };
    assert_eq!(claims.collect::<Vec<_>>(), [(&[7; 32], None), (&[8; 32], Some(5))]);
    assert!((0..body.len()).all(|len| read(15, &body[..len]).is_err()));
    body.push(0);
    assert!(read(15, &body).is_err());
    body[0] = 0;
    assert!(read(15, &body[..4]).is_err(), "no claim at all");
}

#[test]
fn a_collection_has_at_most_64_claims() {
    for (len, holds) in [(64_u32, true), (65, false)] {
        let mut body = len.to_le_bytes().to_vec();
        body.resize(4 + 33 * len as usize, 0);
        assert_eq!(read(15, &body).is_ok(), holds);
    }
}

#[test]
fn parts_of_an_update_are_present_or_not() {
    assert!(matches!(read(16, &[0; 7]), Ok(Message::Update(Update { config: None, bootstrap: None, .. }))));
    let mut body = std::vec![1; 1 + 128];
    body.extend([0; 3]);
    body.extend([1, 2, 0, 0, 0]);
    body.extend([9; 256]);
    body.extend([1; 1 + 32]);
    body.extend([1, 6, 0, 0, 0, 0, 0, 0, 0]);
    let Ok(Message::Update(update)) = read(16, &body) else { panic!("refused") };
    assert_eq!(update.config, Some(&[1; 128]));
    assert!(update.model.is_none() && update.progress.is_none() && update.metadata.is_none());
    assert_eq!(update.bootstrap.map(<[u8]>::len), Some(256));
    assert_eq!((update.first_weights, update.nonce), (Some(&[1; 32]), Some(6)));
    assert!(read(16, &[2, 0, 0, 0, 0, 0, 0]).is_err() && read(16, &[0, 0, 0, 0, 0, 0, 2]).is_err());
    body[133] = 5; // addresses
    body.resize(137 + 5 * 128, 0);
    assert!(read(16, &body).is_err());
}

#[test]
fn rates_are_present_or_not() {
    let body = [1, 4, 0, 0, 0, 0, 0, 0, 0, 0];
    assert!(matches!(read(14, &body), Ok(Message::SetRates(SetRates { earning: Some(4), slashing: None }))));
    assert!(read(14, &body[..9]).is_err() && read(14, &[0, 2]).is_err());
}
