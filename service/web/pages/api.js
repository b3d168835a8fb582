// Swagger UI over the OpenAPI document that the page names. Nothing is validated elsewhere.
const api = document.getElementById("api");
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const followColorScheme = () => document.documentElement.classList.toggle("dark-mode", dark.matches);

dark.addEventListener("change", followColorScheme);
followColorScheme();
window.SwaggerUIBundle({ domNode: api, url: api.dataset.url, deepLinking: true, validatorUrl: null });
