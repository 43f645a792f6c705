// error_codes.cpp -- see error_codes.h.
#include "server/api/error_codes.h"

namespace braid::server {
namespace {

constexpr ErrorCode kCodes[] = {
    {"busy", "503", "The server has no room: connections, request memory, or a model change.",
     "Try again after the seconds of Retry-After. Raise --max-connections or "
     "--max-request-memory-mb."},
    {"chat_template_error", "400",
     "The model's chat template refuses this conversation, in its own words.",
     "Send the roles in the order that the message asks for, or replace the template "
     "(--chat-template "
     "FILE)."},
    {"client_memory", "429", "The requests of this client hold their share of the request memory.",
     "Wait for answers before sending more. Raise --max-request-memory-mb."},
    {"client_queue", "429", "This client has as many waiting requests as it may have.",
     "Wait for answers. Raise --client-max-queue or the limit in the key file."},
    {"client_requests", "429", "This client has as many requests at a time as it may have.",
     "Wait for answers. Raise --client-max-requests or the limit in the key file."},
    {"context_length_exceeded", "400",
     "The prompt, or the prompt with max_tokens, is longer than the context.",
     "Compact the conversation. Start the server with a larger -c; smaller formats (-ctk q8_0) "
     "make room."},
    {"cross_origin", "403",
     "A page of another origin asks, which a browser would allow in the user's name.",
     "Name the origin with --cors-origin."},
    {"host_not_allowed", "403",
     "Without API keys the Host header must be localhost or an IP address.",
     "Name the host with --allowed-host, or use API keys."},
    {"internal_error", "500", "The server met a state that it should not have.",
     "Report it with the log line of the request id."},
    {"invalid_api_key", "401", "The request has no API key, or one that the server does not know.",
     "Send Authorization: Bearer KEY or x-api-key: KEY."},
    {"invalid_json", "400", "The body is not JSON; the message says where it stops being so.",
     "Correct the body. More than 128 levels are refused, too."},
    {"invalid_json_schema", "400", "A schema of tools or of the answer cannot be enforced.",
     "Simplify what the message names, or leave out strict."},
    {"invalid_request", "400 413 431", "The request breaks HTTP, or its header block is too large.",
     "Look at the client or the proxy in between."},
    {"invalid_type", "400", "A field has another JSON type than the API's.",
     "Correct the field in param."},
    {"invalid_value", "400", "A field has a value that the API does not allow.",
     "Correct the field in param."},
    {"method_not_allowed", "405", "The path exists, but not with this method.",
     "Use a method of the Allow header."},
    {"missing_required_parameter", "400", "A field is missing that the API requires.",
     "Add the field in param."},
    {"model_load_failed", "400", "The model that the request names could not be loaded.",
     "Read the message: it names the file and the reason. The model in memory goes on."},
    {"model_loading", "503",
     "Another model is being loaded, or requests to the loaded one are not done.",
     "Try again after the seconds of Retry-After. Raise --model-wait, or run one server for each "
     "model."},
    {"model_not_allowed", "403", "This client may not have this model loaded.",
     "Use a model of its list (--client-models, the key file)."},
    {"model_not_found", "404", "No model has this name, and --strict-model refuses unknown names.",
     "Use a name of /v1/models, or give the model this name with --alias."},
    {"no_slot", "503", "All slots are taken (/slots?fail_on_no_slot=1).",
     "Try again after the seconds of Retry-After. Raise -np."},
    {"not_found", "404", "There is no such path, or the object is not stored.",
     "Compare the path with the API reference. Base URLs of Anthropic clients have no /v1."},
    {"not_supported", "501", "braid does not offer this, such as embeddings.",
     "Use another server for it."},
    {"queue_full", "429", "As many requests wait as may wait.",
     "Try again after the seconds of Retry-After. Raise --max-queue or -np."},
    {"request_timeout", "408 504",
     "The request did not arrive, or the answer did not end, in time.",
     "Raise --read-timeout or --request-timeout."},
    {"request_too_large", "413", "The body is larger than the server takes.",
     "Raise --max-body-mb."},
    {"shutting_down", "503", "The server is ending.",
     "Send the request to another replica, or again later."},
    {"too_many_headers", "431", "The request has too many header fields.",
     "Look at the client or the proxy."},
    {"unsupported_encoding", "415", "The body is compressed.", "Send it as it is."},
    {"unsupported_media_type", "415", "The body is not declared as JSON by a page in a browser.",
     "Send Content-Type: application/json."},
    {"unsupported_parameter", "400",
     "The field would change the answer, and braid does not obey it.",
     "Leave it out. The API reference lists what is obeyed, refused and ignored."},
    {"upstream_failed", "502",
     "The server behind braid proxy broke off, or its answer is not HTTP; the message says what.",
     "Look at the log of that server."},
    {"upstream_timeout", "504",
     "The server behind braid proxy took no connection in time, or was silent for too long.",
     "Raise --connect-timeout or --upstream-timeout, or look at that server."},
    {"upstream_unreachable", "502", "The server behind braid proxy cannot be reached.",
     "Start it, or correct --upstream."},
    {"uri_too_long", "414", "The request line is too long.", "Put the data into the body."},
};

}  // namespace

std::span<const ErrorCode> error_codes() { return kCodes; }

}  // namespace braid::server
