//! Uploads in parts.

use std::collections::BTreeMap;

use s3s::dto::*;
use s3s::xml::is_unfit;
use s3s::{S3Request, S3Response, S3Result, s3_error};
use steadfast_access::canonical_id;
use steadfast_log::Durability;
use steadfast_store::{Attributes, Condition, PartChoice, PartInfo, StoreError, UploadInfo};

use crate::attributes::{described, page_size, refuse_unsupported};
use crate::checksum::{
    Algorithm, COMPOSITE, FULL_OBJECT, algorithm_of, bad_digest, combine, composite, given_checksums, set_checksums,
    unsupported,
};
use crate::conditions::{durability, etag, header_condition, timestamp, write_condition};
use crate::error::{invalid_argument, invalid_request, store_error};
use crate::handler::{Handler, context, durable_header, owner, request_parts};
use crate::ops::acl::{self, given_list};
use crate::ops::list::{Encoding, PAGE_MAX};
use crate::ops::write::{checksum_type, conditional_error, part_number};
use crate::receive::multipart_etag;

/// The canonical id of clients without a key. Source: S3.
const ANONYMOUS_ID: &str = "65a011a29cdf8ec533ec3d1ccaae921c";

pub(crate) async fn create(
    handler: &Handler,
    req: S3Request<CreateMultipartUploadInput>,
) -> S3Result<S3Response<CreateMultipartUploadOutput>> {
    let context = context(&req);
    let caller = request_parts(context.as_ref(), &req.uri, &req.headers)?.caller;
    let input = req.input;
    let condition = header_condition((&handler.store, &input.bucket, &input.key), &req.headers)?;
    refuse_unsupported!(input)?;
    // No parser could read the answers that name the key: those to this request and to the
    // completion.
    if input.key.contains(is_unfit) {
        return Err(invalid_argument(
            "The key has characters that XML cannot carry. Such an object can only be uploaded in one piece.",
        ));
    }
    let mut attributes = described!(input).attributes()?;
    attributes.set_acl(acl::of_write(handler, &input.bucket, &given_list!(input))?);
    attributes.set_initiator(caller.initiator().map(str::to_owned));
    let algorithm = input.checksum_algorithm.as_ref().map(|a| Algorithm::parse(a.as_str())).transpose()?;
    match (algorithm, &input.checksum_type) {
        (Some(algorithm), kind) => {
            let kind = kind.as_ref().map_or(algorithm.default_type(), |k| k.as_str());
            algorithm.check_type(kind)?;
            // The completion of the upload computes the value.
            attributes.checksums.insert(algorithm.name().to_owned(), String::new());
            attributes.checksum_type = kind.to_owned();
        }
        (None, Some(_)) => {
            return Err(invalid_request(
                "The x-amz-checksum-type header can only be used with the x-amz-checksum-algorithm header.",
            ));
        }
        (None, None) => {}
    }
    let matching = matches!(condition, Condition::Matches(_));
    let upload = handler
        .store
        .at(&input.bucket, &input.key)
        .create_upload(attributes, condition)
        .await
        .map_err(|error| conditional_error(handler, error, matching, &input.bucket, &input.key))?;
    Ok(S3Response::new(CreateMultipartUploadOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(upload.upload_id),
        checksum_algorithm: algorithm.map(|a| ChecksumAlgorithm::from_static(a.s3_name())),
        checksum_type: checksum_type(&upload.attributes),
        ..CreateMultipartUploadOutput::default()
    }))
}

/// All parts of an upload, by number.
fn all_parts(handler: &Handler, bucket: &str, key: &str, upload_id: &str) -> S3Result<BTreeMap<u16, PartInfo>> {
    let mut all = BTreeMap::new();
    let mut after = 0;
    loop {
        let (page, more) =
            handler.store.at(bucket, key).upload(upload_id).parts(after, PAGE_MAX as usize).map_err(store_error)?;
        let Some(last) = page.last() else { return Ok(all) };
        after = last.number;
        all.extend(page.into_iter().map(|p| (p.number, p)));
        if !more {
            return Ok(all);
        }
    }
}

/// The parts that the client names, in order, as stored.
fn chosen_parts(named: &[CompletedPart], stored: &BTreeMap<u16, PartInfo>) -> S3Result<Vec<PartInfo>> {
    let mut chosen: Vec<PartInfo> = Vec::with_capacity(named.len());
    for part in named {
        let number = part_number(part.part_number.ok_or_else(malformed)?)?;
        if chosen.last().is_some_and(|last| last.number >= number) {
            return Err(store_error(StoreError::InvalidPartOrder));
        }
        let wrong = || store_error(StoreError::InvalidPart(number));
        let stored = stored.get(&number).ok_or_else(wrong)?;
        if part.e_tag.as_ref().is_none_or(|tag| tag.value() != stored.attributes.etag) {
            return Err(wrong());
        }
        let unchecked = [
            &part.checksum_md5,
            &part.checksum_sha512,
            &part.checksum_xxhash128,
            &part.checksum_xxhash3,
            &part.checksum_xxhash64,
        ];
        if unchecked.into_iter().any(Option::is_some) {
            return Err(unsupported());
        }
        for (algorithm, value) in given_checksums!(part) {
            if stored.attributes.checksums.get(algorithm.name()).is_some_and(|s| s != value) {
                return Err(wrong());
            }
        }
        chosen.push(stored.clone());
    }
    Ok(chosen)
}

fn malformed() -> s3s::S3Error {
    s3_error!(MalformedXML, "The XML you provided was not well-formed or did not validate against our published schema")
}

/// The checksum of the whole object, of the algorithm and type that the upload was created with.
fn whole_checksum(upload: &UploadInfo, parts: &[PartInfo]) -> Option<(Algorithm, String)> {
    let algorithm = algorithm_of(&upload.attributes.checksums)?;
    let mut sums = Vec::with_capacity(parts.len());
    for part in parts {
        sums.push((part.attributes.checksums.get(algorithm.name())?.as_str(), part.size));
    }
    let value = match upload.attributes.checksum_type.as_str() {
        FULL_OBJECT => combine(algorithm, sums.into_iter()),
        COMPOSITE => composite(algorithm, sums.into_iter().map(|(sum, _)| sum)),
        _ => None,
    };
    Some((algorithm, value?))
}

/// The URL of the object as the client reaches the server now, because applications store it. A
/// proxy in front may set the scheme by `X-Forwarded-Proto`.
fn location(https: bool, headers: &http::HeaderMap, uri: &http::Uri) -> String {
    let text = |name: &str| headers.get(name).and_then(|v| v.to_str().ok());
    let scheme = match text("x-forwarded-proto") {
        Some(scheme @ ("http" | "https")) => scheme,
        _ if https => "https",
        _ => "http",
    };
    match text("host") {
        Some(host) => format!("{scheme}://{host}{}", uri.path()),
        None => uri.path().to_owned(),
    }
}

pub(crate) async fn complete(
    handler: &Handler,
    req: S3Request<CompleteMultipartUploadInput>,
) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
    let durability = durability(&req.headers)?;
    let context = context(&req);
    let request = request_parts(context.as_ref(), &req.uri, &req.headers)?;
    let cause = request.caller.cause();
    let location = location(handler.options.https, &req.headers, &req.uri);
    let input = req.input;
    let (bucket, key, upload_id) = (&input.bucket, &input.key, &input.upload_id);
    let target = (&handler.store, bucket.as_str(), key.as_str());
    let condition = write_condition(target, input.if_match.as_ref(), input.if_none_match.as_ref())?;
    let named = input.multipart_upload.as_ref().and_then(|m| m.parts.as_deref()).unwrap_or_default();
    if named.is_empty() {
        return Err(malformed());
    }
    let upload = match handler.store.at(bucket, key).upload(upload_id).info() {
        Err(StoreError::NoSuchUpload) => return complete_again(handler, &input, location, durability).await,
        upload => upload.map_err(store_error)?,
    };
    // To make an object public is a right of its own, which the beginning of the upload needed.
    if upload.attributes.acl().is_some() && upload.attributes.initiator() != request.caller.initiator() {
        handler.judge.check_list_by_policies(handler.judge.facts(request, bucket, Some(key)))?;
    }
    let parts = chosen_parts(named, &all_parts(handler, bucket, key, upload_id)?)?;
    let size: u64 = parts.iter().map(|p| p.size).sum();
    if input.mpu_object_size.is_some_and(|expected| u64::try_from(expected) != Ok(size)) {
        return Err(invalid_request("The provided 'x-amz-mp-object-size' header does not match what was computed."));
    }

    let mut attributes = Attributes {
        etag: multipart_etag(parts.iter().map(|p| p.attributes.etag.as_str())),
        checksums: BTreeMap::new(),
        checksum_type: String::new(),
        ..upload.attributes.clone()
    };
    if let Some((algorithm, value)) = whole_checksum(&upload, &parts) {
        for (given, claimed) in given_checksums!(input) {
            // A composite value may be given with or without its number of parts.
            let bare = value.split('-').next().unwrap_or_default();
            if given == algorithm && claimed != value && claimed != bare {
                return Err(bad_digest(algorithm));
            }
        }
        attributes.checksums.insert(algorithm.name().to_owned(), value);
        attributes.checksum_type.clone_from(&upload.attributes.checksum_type);
    }
    if let Some(kind) = &input.checksum_type
        && !upload.attributes.checksum_type.is_empty()
        && kind.as_str() != upload.attributes.checksum_type
    {
        return Err(invalid_request(format!(
            "The upload was created using the {} checksum mode. The complete request must use the same checksum mode.",
            upload.attributes.checksum_type
        )));
    }
    let output = completed(&input, location, &attributes);
    let choices =
        parts.into_iter().map(|p| PartChoice { number: p.number, etag: p.attributes.etag }).collect::<Vec<_>>();
    // Either condition may have failed: the one of this request, or the one that began the upload.
    let matching = input.if_match.is_some() || matches!(upload.condition, Condition::Matches(_));
    let written = handler
        .store
        .at(bucket, key)
        .caused_by(&cause)
        .upload(upload_id)
        .complete(choices, attributes, condition, durability)
        .await
        .map_err(|error| conditional_error(handler, error, matching, bucket, key))?;
    Ok(S3Response::with_headers(output, durable_header(written.durable)))
}

fn completed(
    input: &CompleteMultipartUploadInput,
    location: String,
    attributes: &Attributes,
) -> CompleteMultipartUploadOutput {
    let mut output = CompleteMultipartUploadOutput {
        bucket: Some(input.bucket.clone()),
        key: Some(input.key.clone()),
        location: Some(location),
        e_tag: Some(etag(&attributes.etag)),
        checksum_type: checksum_type(attributes),
        ..CompleteMultipartUploadOutput::default()
    };
    set_checksums!(output, &attributes.checksums);
    output
}

/// Answers a completion whose upload does not exist: as the first time while the object is still
/// the one that this upload made of the same parts. A client repeats the request when the first
/// answer was lost.
///
/// # Errors
/// `NoSuchUpload`.
async fn complete_again(
    handler: &Handler,
    input: &CompleteMultipartUploadInput,
    location: String,
    durability: Option<Durability>,
) -> S3Result<S3Response<CompleteMultipartUploadOutput>> {
    let absent = || store_error(StoreError::NoSuchUpload);
    let (bucket, key) = (&input.bucket, &input.key);
    let attributes = match handler.store.at(bucket, key).info() {
        Ok(info) if input.mpu_object_size.is_some_and(|size| u64::try_from(size) != Ok(info.size)) => {
            return Err(absent());
        }
        Ok(info) => info.attributes,
        Err(StoreError::NoSuchKey) => return Err(absent()),
        Err(error) => return Err(store_error(error)),
    };
    let named = input.multipart_upload.as_ref().and_then(|m| m.parts.as_deref()).unwrap_or_default();
    let tags: Vec<&str> = named.iter().filter_map(|part| Some(part.e_tag.as_ref()?.value())).collect();
    if multipart_etag(tags.iter().copied()) != attributes.etag {
        return Err(absent());
    }
    let output = completed(input, location, &attributes);
    // The store compares the upload that made the object. Conditions held the first time.
    let written = handler
        .store
        .at(bucket, key)
        .upload(&input.upload_id)
        .complete(Vec::new(), attributes, Condition::None, durability)
        .await
        .map_err(store_error)?;
    Ok(S3Response::with_headers(output, durable_header(written.durable)))
}

pub(crate) async fn abort(
    handler: &Handler,
    req: S3Request<AbortMultipartUploadInput>,
) -> S3Result<S3Response<AbortMultipartUploadOutput>> {
    let input = req.input;
    if input.if_match_initiated_time.is_some() {
        return Err(s3_error!(NotImplemented, "Conditions on aborts are not offered."));
    }
    handler.store.at(&input.bucket, &input.key).upload(&input.upload_id).abort().await.map_err(store_error)?;
    Ok(S3Response::with_status(AbortMultipartUploadOutput::default(), http::StatusCode::NO_CONTENT))
}

/// The client that began an upload.
fn initiator(upload: &UploadInfo) -> Initiator {
    match upload.attributes.initiator() {
        None => {
            let owner = owner();
            Initiator { display_name: owner.display_name, id: owner.id }
        }
        Some("") => Initiator { display_name: None, id: Some(ANONYMOUS_ID.to_owned()) },
        Some(user) => Initiator { display_name: Some(user.to_owned()), id: Some(canonical_id(Some(user))) },
    }
}

pub(crate) async fn list_parts(
    handler: &Handler,
    req: S3Request<ListPartsInput>,
) -> S3Result<S3Response<ListPartsOutput>> {
    let input = req.input;
    let limit = page_size(input.max_parts, PAGE_MAX, "max-parts")?;
    let after = input.part_number_marker.unwrap_or(0);
    let marker = u16::try_from(after).map_err(|_| invalid_argument("Argument part-number-marker is out of range"))?;
    let upload = handler.store.at(&input.bucket, &input.key).upload(&input.upload_id).info().map_err(store_error)?;
    let (parts, more) = if limit == 0 {
        (Vec::new(), false)
    } else {
        handler
            .store
            .at(&input.bucket, &input.key)
            .upload(&input.upload_id)
            .parts(marker, limit as usize)
            .map_err(store_error)?
    };
    let next = parts.last().map(|p| i32::from(p.number)).filter(|_| more);
    let parts = parts
        .into_iter()
        .map(|p| {
            let mut part = Part {
                e_tag: Some(etag(&p.attributes.etag)),
                last_modified: Some(timestamp(p.modified_ms)),
                part_number: Some(i32::from(p.number)),
                size: i64::try_from(p.size).ok(),
                ..Part::default()
            };
            set_checksums!(part, &p.attributes.checksums);
            part
        })
        .collect();
    Ok(S3Response::new(ListPartsOutput {
        bucket: Some(input.bucket),
        key: Some(input.key),
        upload_id: Some(input.upload_id),
        checksum_algorithm: algorithm_of(&upload.attributes.checksums)
            .map(|a| ChecksumAlgorithm::from_static(a.s3_name())),
        checksum_type: checksum_type(&upload.attributes),
        is_truncated: Some(more),
        max_parts: Some(limit),
        next_part_number_marker: next,
        part_number_marker: Some(after),
        parts: Some(parts),
        owner: Some(owner()),
        initiator: Some(initiator(&upload)),
        storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
        ..ListPartsOutput::default()
    }))
}

pub(crate) async fn list(
    handler: &Handler,
    req: S3Request<ListMultipartUploadsInput>,
) -> S3Result<S3Response<ListMultipartUploadsOutput>> {
    let input = req.input;
    let encoding = Encoding::read(input.encoding_type.as_ref())?;
    let limit = page_size(input.max_uploads, PAGE_MAX, "max-uploads")?;
    let prefix = input.prefix.clone().unwrap_or_default();
    let delimiter = input.delimiter.clone().unwrap_or_default();
    let key_marker = input.key_marker.clone().unwrap_or_default();
    // Without a key marker, S3 ignores the other one.
    let upload_marker = input.upload_id_marker.clone().filter(|_| !key_marker.is_empty()).unwrap_or_default();
    // The answer repeats these parameters.
    encoding.check([&prefix, &delimiter, &key_marker])?;
    let page = handler
        .store
        .contents(&input.bucket)
        .uploads(&prefix, &delimiter, (&key_marker, &upload_marker), limit as usize)
        .map_err(store_error)?;
    encoding.check(page.uploads.iter().map(|u| &u.key).chain(&page.prefixes))?;
    let (next_key, next_upload) = page.next.map_or((None, None), |(key, id)| (Some(key), Some(id)));
    let uploads: Vec<MultipartUpload> = page
        .uploads
        .into_iter()
        .map(|u| MultipartUpload {
            checksum_algorithm: algorithm_of(&u.attributes.checksums)
                .map(|a| ChecksumAlgorithm::from_static(a.s3_name())),
            checksum_type: checksum_type(&u.attributes),
            initiated: Some(timestamp(u.created_ms)),
            initiator: Some(initiator(&u)),
            key: Some(encoding.name(u.key)),
            owner: Some(owner()),
            storage_class: Some(StorageClass::from_static(StorageClass::STANDARD)),
            upload_id: Some(u.upload_id),
        })
        .collect();
    Ok(S3Response::new(ListMultipartUploadsOutput {
        bucket: Some(input.bucket),
        common_prefixes: encoding.prefixes(page.prefixes),
        delimiter: input.delimiter.filter(|d| !d.is_empty()).map(|d| encoding.name(d)),
        encoding_type: input.encoding_type,
        is_truncated: Some(next_key.is_some()),
        key_marker: Some(encoding.name(key_marker)),
        max_uploads: Some(limit),
        next_key_marker: next_key.map(|k| encoding.name(k)),
        next_upload_id_marker: next_upload,
        prefix: Some(encoding.name(prefix)),
        request_charged: None,
        upload_id_marker: input.upload_id_marker,
        uploads: Some(uploads),
    }))
}
