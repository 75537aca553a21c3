//! Notification rules: the targets that receive events of a bucket's objects.

use std::collections::BTreeSet;

use s3s::dto::*;
use s3s::{S3Request, S3Response, S3Result, s3_error};
use serde::{Deserialize, Serialize};
use steadfast_store::{EventKind, NotificationRule, Notifications};

use crate::error::{invalid_argument, store_error};
use crate::handler::{Handler, context};

/// S3's limit on the rules of a bucket.
const RULES_MAX: usize = 100;

/// The longest name of a rule, as in S3.
const ID_BYTES_MAX: usize = 255;

/// The longest prefix or suffix: that of a key.
const FILTER_BYTES_MAX: usize = 1024;

/// Limit on the bytes of all rules of a bucket, because its record holds them.
const DOCUMENT_BYTES_MAX: usize = 20_000;

/// The S3 element that contained a rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
enum Element {
    Topic,
    Queue,
    CloudFunction,
}

/// A rule as the client sent it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Given {
    element: Element,
    id: String,
    arn: String,
    events: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    prefix: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    suffix: Option<String>,
}

/// The event names that a rule may contain, and the events that each stands for. Browser uploads
/// with POST are not offered, so `s3:ObjectCreated:Post` never occurs.
const EVENTS: [(&str, &[EventKind]); 7] = [
    ("s3:ObjectCreated:*", &[EventKind::Put, EventKind::Copy, EventKind::Complete]),
    ("s3:ObjectCreated:Put", &[EventKind::Put]),
    ("s3:ObjectCreated:Post", &[]),
    ("s3:ObjectCreated:Copy", &[EventKind::Copy]),
    ("s3:ObjectCreated:CompleteMultipartUpload", &[EventKind::Complete]),
    ("s3:ObjectRemoved:*", &[EventKind::Delete]),
    ("s3:ObjectRemoved:Delete", &[EventKind::Delete]),
];

impl Given {
    fn new(
        handler: &Handler,
        element: Element,
        arn: String,
        id: Option<String>,
        events: EventList,
        filter: Option<NotificationConfigurationFilter>,
    ) -> S3Result<Self> {
        let id = id.filter(|id| !id.is_empty()).unwrap_or_else(|| format!("{:016x}", handler.env.random_u64()));
        if id.len() > ID_BYTES_MAX {
            return Err(invalid_argument(format!("A configuration's Id has at most {ID_BYTES_MAX} bytes.")));
        }
        let (mut prefix, mut suffix) = (None, None);
        for rule in filter.and_then(|filter| filter.key?.filter_rules).unwrap_or_default() {
            let name = rule.name.as_ref().map(|name| name.as_str().to_ascii_lowercase()).unwrap_or_default();
            let which = match &name[..] {
                "prefix" => &mut prefix,
                "suffix" => &mut suffix,
                _ => return Err(invalid_argument("filter rule name must be either prefix or suffix")),
            };
            let value = rule.value.unwrap_or_default();
            if value.len() > FILTER_BYTES_MAX {
                return Err(invalid_argument(format!("A filter's value has at most {FILTER_BYTES_MAX} bytes.")));
            }
            if which.replace(value).is_some() {
                return Err(invalid_argument(
                    "Cannot specify more than one prefix rule and one suffix rule in a filter.",
                ));
            }
        }
        let events = events.into_iter().map(String::from).collect();
        Ok(Self { element, id, arn, events, prefix, suffix })
    }

    fn rule(&self) -> S3Result<NotificationRule> {
        if self.events.is_empty() {
            return Err(invalid_argument(format!("The configuration {:?} names no event.", self.id)));
        }
        let mut kinds = Vec::new();
        for event in &self.events {
            let Some((_, known)) = EVENTS.iter().find(|(name, _)| name == event) else {
                let offered: Vec<&str> = EVENTS.iter().map(|(name, _)| *name).collect();
                return Err(invalid_argument(format!(
                    "The event '{event}' is not supported for notifications; supported: {}",
                    offered.join(", ")
                )));
            };
            kinds.extend_from_slice(known);
        }
        Ok(NotificationRule {
            id: self.id.clone(),
            target: self.arn.clone(),
            kinds,
            prefix: self.prefix.clone().unwrap_or_default(),
            suffix: self.suffix.clone().unwrap_or_default(),
        })
    }

    fn parts(self) -> (EventList, Option<NotificationConfigurationFilter>, Option<String>, String) {
        let events = self.events.into_iter().map(Event::from).collect();
        let rule = |name, value: Option<String>| {
            value.map(|value| FilterRule { name: Some(FilterRuleName::from_static(name)), value: Some(value) })
        };
        let rules: Vec<FilterRule> =
            [rule(FilterRuleName::PREFIX, self.prefix), rule(FilterRuleName::SUFFIX, self.suffix)]
                .into_iter()
                .flatten()
                .collect();
        let filter = (!rules.is_empty())
            .then_some(NotificationConfigurationFilter { key: Some(S3KeyFilter { filter_rules: Some(rules) }) });
        (events, filter, Some(self.id), self.arn)
    }
}

fn read(handler: &Handler, configuration: NotificationConfiguration) -> S3Result<Vec<Given>> {
    if configuration.event_bridge_configuration.is_some() {
        return Err(s3_error!(
            NotImplemented,
            "A header you provided implies functionality that is not implemented: EventBridge. Name a channel or a webhook."
        ));
    }
    let mut given = Vec::new();
    for c in configuration.topic_configurations.unwrap_or_default() {
        given.push(Given::new(handler, Element::Topic, c.topic_arn, c.id, c.events, c.filter)?);
    }
    for c in configuration.queue_configurations.unwrap_or_default() {
        given.push(Given::new(handler, Element::Queue, c.queue_arn, c.id, c.events, c.filter)?);
    }
    for c in configuration.lambda_function_configurations.unwrap_or_default() {
        given.push(Given::new(handler, Element::CloudFunction, c.lambda_function_arn, c.id, c.events, c.filter)?);
    }
    Ok(given)
}

pub(crate) async fn put(
    handler: &Handler,
    req: S3Request<PutBucketNotificationConfigurationInput>,
) -> S3Result<S3Response<PutBucketNotificationConfigurationOutput>> {
    let is_root = context(&req).is_some_and(|c| c.caller.get().is_some_and(|caller| caller.identity.is_root()));
    let input = req.input;
    let bucket = handler.store.buckets().get(&input.bucket).map_err(store_error)?;
    let given = read(handler, input.notification_configuration)?;
    let has = bucket.settings.notifications.as_ref();
    let is_known = |arn: &str| has.is_some_and(|has| has.rules.iter().any(|rule| rule.target == arn));
    // Channels and webhooks belong to the whole server: the rights to a bucket are none to them.
    if !is_root && !given.iter().all(|one| is_known(&one.arn)) {
        return Err(s3_error!(AccessDenied, "Only the root identity can name a target that the bucket does not have."));
    }
    if given.len() > RULES_MAX {
        return Err(invalid_argument(format!("A bucket has at most {RULES_MAX} notification configurations.")));
    }
    let mut ids = BTreeSet::new();
    let mut rules = Vec::with_capacity(given.len());
    for one in &given {
        if !ids.insert(&one.id) {
            return Err(invalid_argument(
                "Same ID used for multiple configurations. IDs must be unique across all configurations",
            ));
        }
        rules.push(one.rule()?);
        let check = match &handler.options.targets {
            Some(targets) if input.skip_destination_validation != Some(true) => targets.check(&one.arn),
            Some(_) => Ok(()),
            None => Err("this server sends no notifications".to_owned()),
        };
        check.map_err(|why| {
            invalid_argument(format!("Unable to validate the following destination configurations: {}: {why}", one.arn))
        })?;
    }
    let document = serde_json::to_string(&given).map_err(|e| s3_error!(InternalError, "{}", e))?;
    if document.len() > DOCUMENT_BYTES_MAX {
        return Err(invalid_argument(format!(
            "The notification configurations of a bucket take at most {DOCUMENT_BYTES_MAX} bytes together; these take {}.",
            document.len()
        )));
    }
    let notifications = (!rules.is_empty()).then_some(Notifications { rules, document });
    let changed =
        handler.store.buckets().change(&input.bucket, |settings| settings.notifications = notifications).await;
    changed.map_err(store_error)?;
    Ok(S3Response::new(PutBucketNotificationConfigurationOutput::default()))
}

pub(crate) async fn get(
    handler: &Handler,
    req: S3Request<GetBucketNotificationConfigurationInput>,
) -> S3Result<S3Response<GetBucketNotificationConfigurationOutput>> {
    let info = handler.store.buckets().get(&req.input.bucket).map_err(store_error)?;
    let document = info.settings.notifications.map(|notifications| notifications.document);
    let given: Vec<Given> = match document {
        Some(document) => serde_json::from_str(&document)
            .map_err(|e| s3_error!(InternalError, "The notification configuration cannot be read: {}", e))?,
        None => Vec::new(),
    };
    let (mut topics, mut queues, mut functions) = (Vec::new(), Vec::new(), Vec::new());
    for one in given {
        let element = one.element;
        let (events, filter, id, arn) = one.parts();
        match element {
            Element::Topic => topics.push(TopicConfiguration { events, filter, id, topic_arn: arn }),
            Element::Queue => queues.push(QueueConfiguration { events, filter, id, queue_arn: arn }),
            Element::CloudFunction => {
                functions.push(LambdaFunctionConfiguration { events, filter, id, lambda_function_arn: arn });
            }
        }
    }
    Ok(S3Response::new(GetBucketNotificationConfigurationOutput {
        event_bridge_configuration: None,
        topic_configurations: (!topics.is_empty()).then_some(topics),
        queue_configurations: (!queues.is_empty()).then_some(queues),
        lambda_function_configurations: (!functions.is_empty()).then_some(functions),
    }))
}
